"""The binary form of a timeline: one JSON header, then columns of numbers.

    "HPT2" | u32 length of the header | header (UTF-8 JSON, padded with spaces) | columns, each at a multiple of 8

The header's `columns` gives for each name its type, its offset from the first column, its length in numbers, and in
bytes. Types are "u1", "u2", "u4", "i4", "f8" (little-endian, read in place) and "var": unsigned numbers of seven bits
a byte, the lowest first, a set top bit meaning that more follow (LEB128).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson

MAGIC: Final = b"HPT2"
MAX_VARIABLE: Final = (1 << 49) - 1  # seven bytes; a browser's numbers are exact to 2^53
_TYPES: Final = {"u1", "u2", "u4", "i4", "f8"}


@dataclass(frozen=True, slots=True)
class VarintColumn:
    """Numbers of variable length, encoded."""

    data: np.ndarray  # u1
    length: int  # numbers

    @classmethod
    def of(cls, values: np.ndarray) -> VarintColumn:
        """Encode numbers from 0 to MAX_VARIABLE; larger ones are stored as MAX_VARIABLE."""
        left = np.minimum(values, MAX_VARIABLE).astype(np.int64)
        n_bytes = np.ones(len(left), np.int64)
        for extra in range(1, 7):
            n_bytes += left >= 1 << (7 * extra)
        at = np.cumsum(n_bytes) - n_bytes
        data = np.empty(int(n_bytes.sum()), np.uint8)
        rows = np.arange(len(left))
        for place in range(int(n_bytes.max(initial=0))):
            rows = rows[n_bytes[rows] > place]
            more = (n_bytes[rows] > place + 1) << 7
            data[at[rows] + place] = ((left[rows] >> (7 * place)) & 127) | more
        return cls(data, len(left))

    @classmethod
    def of_differences(cls, values: np.ndarray) -> VarintColumn:
        """Encode differences from one number to the next, which may fall: 0, -1, 1, -2 become 0, 1, 2, 3."""
        steps = np.diff(values.astype(np.int64), prepend=0)
        return cls.of(np.where(steps < 0, -2 * steps - 1, 2 * steps))

    def values(self) -> np.ndarray:
        """Decode."""
        ends = np.flatnonzero(self.data < 128)
        begins = np.concatenate([[0], ends[:-1] + 1])[: len(ends)]
        found = np.zeros(len(ends), np.int64)
        for place in range(7):
            has = begins + place <= ends
            found[has] |= (self.data[begins[has] + place].astype(np.int64) & 127) << (7 * place)
        return found


def encode(header: Mapping[str, object], columns: Mapping[str, np.ndarray | VarintColumn]) -> bytes:
    """Header and columns as one block of bytes."""
    places, chunks, offset = {}, [], 0
    for name, values in columns.items():
        data, kind = (values.data, "var") if isinstance(values, VarintColumn) else (values, values.dtype.str[1:])
        if kind not in _TYPES | {"var"}:
            raise ValueError(f"column {name} has the type {kind}")
        length = values.length if isinstance(values, VarintColumn) else len(values)
        places[name] = {"type": kind, "offset": offset, "length": length, "bytes": data.nbytes}
        chunks += [data.astype(data.dtype.newbyteorder("<"), copy=False).tobytes(), _padding(data.nbytes)]
        offset += data.nbytes + len(chunks[-1])
    text = orjson.dumps({**header, "columns": places}, option=orjson.OPT_SERIALIZE_NUMPY)
    text += b" " * len(_padding(len(text)))
    return b"".join([MAGIC, struct.pack("<I", len(text)), text, *chunks])


def with_header(data: bytes, facts: Mapping[str, object]) -> bytes:
    """The block with these facts in its header, its columns as they are."""
    (length,) = struct.unpack_from("<I", data, 4)
    text = orjson.dumps({**orjson.loads(data[8 : 8 + length]), **facts})
    text += b" " * len(_padding(len(text)))
    return b"".join([MAGIC, struct.pack("<I", len(text)), text, memoryview(data)[8 + length :]])


def decode(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `encode` was given, the header with its `columns`; for tests and the benchmark."""
    if data[:4] != MAGIC:
        raise ValueError("these bytes are no timeline")
    (length,) = struct.unpack_from("<I", data, 4)
    header = orjson.loads(data[8 : 8 + length])
    columns = {name: _column(data, 8 + length, place) for name, place in header["columns"].items()}
    return header, columns


def _column(data: bytes, first: int, place: Mapping[str, Any]) -> np.ndarray:
    at = first + place["offset"]
    if place["type"] == "var":
        return VarintColumn(np.frombuffer(data, np.uint8, place["bytes"], at), place["length"]).values()
    return np.frombuffer(data, f"<{place['type']}", place["length"], at)


def smallest_unsigned(values: np.ndarray) -> np.ndarray:
    """The values (none negative) as the narrowest of u1, u2 and u4 that holds them."""
    highest = int(values.max(initial=0))
    kind = next(kind for kind in (np.uint8, np.uint16, np.uint32) if highest <= np.iinfo(kind).max)
    return values.astype(kind)


def _padding(length: int) -> bytes:
    return bytes(-length % 8)
