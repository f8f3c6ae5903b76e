"""Decodes one parquet part, which is somebody else's file: what it may cost is bounded before it is paid.

A footer can promise little and its pages unfold to anything: one long text that a few run-length bytes repeat a
million times, or a page of zeros. So the pages' own headers are added up (profiler/storage/pages.py), texts stay
dictionaries until their length is known, and a column of another type is refused instead of cast.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from executor.errors import HprofError, first_line
from profiler.schema import TABLES
from profiler.storage.pages import unfolded_bytes
from profiler.storage.possible_sizes import with_possible_sizes
from profiler.storage.store import Store

# What a part may claim before it is refused: a few run-length bytes can stand for billions of rows.
MAX_ROW_GROUP_ROWS: Final = 1 << 22
MAX_ROW_GROUP_BYTES: Final = 1 << 30
MAX_TABLE_ROWS: Final = 200_000_000
MAX_TABLE_BYTES: Final = 3 << 29  # of what is decoded of one table at once: 14 M events with all their columns
MAX_LABEL_BYTES: Final = 1 << 16  # of one text that rows share, such as the name of a kernel
SUFFIX: Final = ".parquet"
_THRIFT_LIMIT: Final = 64 * 1024 * 1024


@contextmanager
def reading(store: Store, table_name: str, part: str) -> Iterator[Any]:
    """The open parquet file of a part, its sizes checked. Raises HprofError for what goes wrong inside."""
    name = f"{table_name}/{part}{SUFFIX}"
    where = store.where(name)
    with _told(where, "; restore it, or capture again."), _source(store, name) as source:
        file = _opened(source, table_name)
        _check_size(file.metadata, where)
        _check_names(file.schema_arrow.names)
        yield file


def count_part_rows(store: Store, table_name: str, part: str) -> int:
    """Rows of a part by its footer. Raises HprofError that names the file."""
    name = f"{table_name}/{part}{SUFFIX}"
    with _told(store.where(name), "."), _source(store, name) as source:
        return int(pq.read_metadata(source).num_rows)


def read_groups(
    store: Store, part: str, file: Any, groups: Sequence[int], table_name: str, columns: Collection[str]
) -> tuple[pa.Table, int]:
    """Columns of some row groups, in the schema's order and types; those that the file lacks are null.

    And how many sizes in them are null because nothing can have such a size. `file` is `reading`'s for this part.
    """
    present = [column for column in dict.fromkeys(columns) if column in file.schema_arrow.names]
    where = store.where(f"{table_name}/{part}{SUFFIX}")
    _check_types(file.schema_arrow, table_name, present, where)
    n_rows = sum(file.metadata.row_group(group).num_rows for group in groups)
    _check_amount(n_rows * sum(_row_bytes(TABLES[table_name].field(name).type) for name in columns), where)
    with _source(store, f"{table_name}/{part}{SUFFIX}") as source:
        for group in groups:
            n_bytes = unfolded_bytes(source, file.metadata.row_group(group), present, MAX_ROW_GROUP_BYTES)
            if n_bytes > MAX_ROW_GROUP_BYTES:
                raise HprofError(
                    f"{where} has a row group whose pages unfold to more than {MAX_ROW_GROUP_BYTES:,} bytes, which is "
                    "the limit: write smaller ones."
                )
    table = file.read_row_groups(groups, columns=present)
    _check_texts(table, where, TABLES[table_name])
    return with_possible_sizes(_fit(table, TABLES[table_name], columns), table_name)


@contextmanager
def _told(where: str, advice: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise HprofError(f"{where} is not a readable parquet part ({first_line(error)}){advice}") from error


@contextmanager
def _source(store: Store, name: str) -> Iterator[Any]:
    """Arrow's own file where that is possible.

    Arrow's threads drop what they read on their own, even while the interpreter ends: a buffer of Python's that one of
    them holds then ends the process with "terminate called without an active exception". So no thread of Arrow's gets
    to see a Python file (`_opened`).
    """
    with store.open(name) as file:
        if not store.is_local:
            yield file
            return
    with pa.OSFile(os.fsencode(store.where(name))) as native:
        yield native


def _opened(source: object, table_name: str) -> Any:
    limits = {"thrift_string_size_limit": _THRIFT_LIMIT, "thrift_container_size_limit": _THRIFT_LIMIT}
    is_native = isinstance(source, pa.NativeFile)
    metadata = pq.ParquetFile(source, pre_buffer=False, **limits).metadata
    stored = {metadata.schema.column(index).path for index in range(metadata.num_columns)}
    texts = [field.name for field in TABLES[table_name] if field.name in stored and _is_text(field.type)]
    return pq.ParquetFile(source, metadata=metadata, read_dictionary=texts, pre_buffer=is_native, **limits)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind))


def _check_size(metadata: Any, where: str) -> None:
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        if group.num_rows > MAX_ROW_GROUP_ROWS or group.total_byte_size > MAX_ROW_GROUP_BYTES:
            raise HprofError(
                f"{where} has a row group of {group.num_rows:,} rows and {group.total_byte_size:,} bytes; "
                f"the limits are {MAX_ROW_GROUP_ROWS:,} and {MAX_ROW_GROUP_BYTES:,}: write smaller ones."
            )
    if metadata.num_rows > MAX_TABLE_ROWS:
        raise HprofError(f"{where} holds more than {MAX_TABLE_ROWS:,} rows; capture fewer passes.")


def _check_names(names: Sequence[str]) -> None:
    """Raises ValueError where a name could mean either of two columns."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"it has two columns '{twice[0][:60]}'")


def _check_types(stored: pa.Schema, table_name: str, columns: Sequence[str], where: str) -> None:
    """A text where the schema has a number would be decoded at any length before it could be cast."""
    for name in columns:
        kind, wanted = stored.field(name).type, TABLES[table_name].field(name).type
        if _family(kind) != _family(wanted):
            raise HprofError(
                f"{where} is not a readable parquet part (its column '{name}' is {str(kind)[:60]}, "
                f"not {wanted}); restore it, or capture again."
            )


def _family(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return "text"
    if pa.types.is_nested(kind):
        return "list"
    return "number"


def _check_texts(table: pa.Table, where: str, schema: pa.Schema) -> None:
    """That texts are UTF-8 and can be written out: labels are short, all others not too long together.

    Raises ValueError for what is no UTF-8.
    """
    n_bytes = 0
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_nested(column.type):
            column.validate(full=True)
            n_bytes += column.nbytes
        elif pa.types.is_dictionary(column.type):
            lengths = [pc.binary_length(chunk.dictionary) for chunk in column.chunks]
            for chunk in column.chunks:
                chunk.dictionary.validate(full=True)
            if not pa.types.is_dictionary(schema.field(name).type):
                n_bytes += sum(map(_written_out, column.chunks, lengths))
            elif (longest := max((pc.max(each).as_py() or 0 for each in lengths), default=0)) > MAX_LABEL_BYTES:
                raise HprofError(
                    f"{where} holds a text of {longest:,} bytes in '{name}', where names have at most "
                    f"{MAX_LABEL_BYTES:,}; restore it, or capture again."
                )
    _check_amount(n_bytes, where)


def _written_out(texts: pa.DictionaryArray, lengths: pa.Array) -> int:
    """The bytes of all texts, each as often as it occurs."""
    return pc.sum(lengths.take(texts.indices).cast(pa.int64())).as_py() or 0


def _check_amount(n_bytes: int, where: str) -> None:
    if n_bytes > MAX_TABLE_BYTES:
        raise HprofError(
            f"{where} takes {n_bytes:,} bytes of memory and the limit is {MAX_TABLE_BYTES:,}; capture fewer passes."
        )


def _row_bytes(kind: pa.DataType) -> int:
    """What a row of this type takes at least."""
    if pa.types.is_dictionary(kind):
        kind = kind.index_type
    return kind.bit_width // 8 or 1 if pa.types.is_primitive(kind) else 8


def _fit(table: pa.Table, schema: pa.Schema, columns: Collection[str]) -> pa.Table:
    wanted = [field for field in schema if field.name in columns]
    arrays = [
        _cast(table[field.name], field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in wanted
    ]
    return pa.Table.from_arrays(arrays, schema=pa.schema(wanted))


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return column if column.type == kind else column.cast(kind)
