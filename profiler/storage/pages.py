"""How many bytes the pages of a parquet row group unfold to, by the header of each page.

A reader allocates what a page's own header says, whatever the footer promised: so the headers are walked, a few
thousand in a capture of 10 M events, before anything is decoded. They are Thrift structs in the compact protocol
(parquet.thrift, `PageHeader`; thrift's doc/specs/thrift-compact-protocol.md).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

_HEADER_BYTES: Final = (256, 1 << 16, 1 << 24)  # read so much; more only where least and greatest texts make it long
_UNCOMPRESSED_SIZE: Final = 2  # numbers of PageHeader's fields
_COMPRESSED_SIZE: Final = 3
_I8, _I16, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 3, 4, 6, 7, 8, 9, 10, 12
_MAX_NESTED: Final = 8


def unfolded_bytes(source: Any, group: Any, columns: Collection[str], limit_bytes: int) -> int:
    """Bytes that the pages of these columns unfold to; counting stops beyond `limit_bytes`.

    `source` is the open file, `group` pyarrow's metadata of the row group. Raises ValueError for what is no page.
    """
    total = 0
    for index in range(group.num_columns):
        chunk = group.column(index)
        if chunk.path_in_schema.split(".", 1)[0] in columns:
            total += _unfolded(source, chunk, limit_bytes - total)
        if total > limit_bytes:
            break
    return total


def _unfolded(source: Any, chunk: Any, limit_bytes: int) -> int:
    first, total = chunk.dictionary_page_offset, 0
    position = chunk.data_page_offset if first is None or first <= 0 else min(first, chunk.data_page_offset)
    end = position + chunk.total_compressed_size
    while position < end and total <= limit_bytes:
        n_header, unfolded, packed = _page(source, position)
        total += unfolded
        position += n_header + packed
    return total


def _page(source: Any, position: int) -> tuple[int, int, int]:
    """(bytes of the header, of the page unfolded, of the page as it lies there)."""
    for n_bytes in _HEADER_BYTES:
        source.seek(position)
        data = source.read(n_bytes)
        try:
            end, sizes = _struct(data, 0, _MAX_NESTED)
        except IndexError:
            if len(data) < n_bytes:
                break
            continue
        unfolded, packed = sizes.get(_UNCOMPRESSED_SIZE, -1), sizes.get(_COMPRESSED_SIZE, -1)
        if unfolded < 0 or packed < 0:
            break
        return end, unfolded, packed
    raise ValueError("a page has no readable header")


def _struct(data: bytes, at: int, depth: int) -> tuple[int, dict[int, int]]:
    """Where the struct at `at` ends, and its whole numbers by field. Raises IndexError where `data` ends before it."""
    numbers: dict[int, int] = {}
    field = 0
    while (head := data[at]) != 0:
        at += 1
        kind = head & 15
        if head >> 4:
            field += head >> 4
        else:
            at, field = _number(data, at)
        if _I16 <= kind <= _I64:
            at, numbers[field] = _number(data, at)
        else:
            at = _after(data, at, kind, depth)
    return at + 1, numbers


def _after(data: bytes, at: int, kind: int, depth: int) -> int:
    """Where a value that nobody asked for ends."""
    if depth == 0 or kind > _STRUCT or kind == _STRUCT - 1:
        raise ValueError("a page's header holds what no page has")
    if kind < _I8:  # true and false are their own type
        return at
    if kind == _I8:
        return at + 1
    if kind <= _I64:
        return _number(data, at)[0]
    if kind == _DOUBLE:
        return at + 8
    if kind == _BINARY:
        at, doubled = _varint(data, at)
        if at + doubled > len(data):
            raise IndexError
        return at + doubled
    if kind in (_LIST, _SET):
        head, at = data[at], at + 1
        n_items = head >> 4
        if n_items == 15:
            at, n_items = _varint(data, at)
        if n_items > len(data) - at:  # each takes a byte at least
            raise IndexError
        for _ in range(n_items):
            at = max(at + 1, _after(data, at, head & 15, depth - 1))  # true and false take one here
        return at
    return _struct(data, at, depth - 1)[0]


def _number(data: bytes, at: int) -> tuple[int, int]:
    at, zigzag = _varint(data, at)
    return at, (zigzag >> 1) ^ -(zigzag & 1)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return at, value
        shift += 7
    raise ValueError("a page's header holds an endless number")
