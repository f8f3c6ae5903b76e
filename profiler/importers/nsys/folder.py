"""Reads the folder exports, parquetdir and arrowdir: one file a table, columns read only when asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from executor.arrays import Int64
from executor.errors import HprofError, first_line
from profiler.importers.absent import absent, from_arrow
from profiler.importers.nsys.tables import MAX_ROWS, MAX_SMALL_ROWS, MAX_TEXT_CHARS
from profiler.storage.pages import unfolded_bytes

_SUFFIXES: Final = (".parquet", ".arrow", ".arrows")
_N_READERS: Final = 2
_FREE_ROWS: Final = 1 << 20
_MAX_BYTES: Final = 1 << 34
_MAX_READ_BYTES: Final = 1 << 30  # of the columns that are read of a table at once: 10 M rows of a dozen columns
_T = TypeVar("_T")


class FolderTables:
    """One exported folder. Raises HprofError, naming the file, whenever arrow cannot read one."""

    def __init__(self, path: Path) -> None:
        self.warnings: list[str] = []
        tables = sorted(_table_files(path))
        self._files = {file.stem: file for file in tables if file.is_file()}
        self.warnings += [f"{file.name} is no file, and was not read." for file in tables if not file.is_file()]
        self._columns: dict[str, frozenset[str]] = {}
        self._pool = ThreadPoolExecutor(_N_READERS)
        self._expected: dict[tuple[str, ...], Future[pa.Table]] = {}
        if "META_DATA_EXPORT" not in self._files and "EXPORT_META_DATA" not in self._files:
            self.warnings.append(
                f"{path.name} lacks META_DATA_EXPORT, which nsys writes last: the export may be incomplete."
            )

    def close(self) -> None:
        """Nothing is kept open but threads that read ahead."""
        self._pool.shutdown(cancel_futures=True)

    def expect(self, table: str, columns: Sequence[str]) -> None:
        """Begin to read; see `tables.ExportTables`. What goes wrong is said when the columns are asked for."""
        if present := [name for name in columns if name in self.columns(table)]:
            self._expected[table, *present] = self._pool.submit(_read_file, self._files[table], present)

    def columns(self, table: str) -> frozenset[str]:
        """The columns of a table; empty when there is no file for it."""
        if table not in self._files:
            return frozenset()
        if table not in self._columns:
            file = self._files[table]
            self._columns[table] = _checked(lambda: frozenset(_schema_of(file).names), file)
        return self._columns[table]

    def ints(self, table: str, columns: Sequence[str]) -> dict[str, Int64]:
        """Whole columns; see `tables.ExportTables`."""
        present = [name for name in columns if name in self.columns(table)]
        read = self._read(table, present)
        self.warnings += [
            f"{table}.{name} holds {read[name].type} and no whole numbers: it was not read."
            for name in present
            if not (_holds_integers(read[name].type) or pa.types.is_null(read[name].type))
        ]
        found = {name: self._convert(table, read[name], _int64) for name in present}
        n_rows = read.num_rows if present else self._n_rows(table)
        return {name: found[name] if name in found else absent(n_rows) for name in columns}

    def texts(self, table: str, column: str) -> pa.ChunkedArray:
        """A whole text column; see `tables.ExportTables`."""
        if column not in self.columns(table):
            return pa.chunked_array([pa.nulls(self._n_rows(table), pa.string())])
        return self._convert(table, self._read(table, [column])[column], _text)

    def small(self, table: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        """A table of facts; see `tables.ExportTables`."""
        present = [name for name in columns if name in self.columns(table)]
        if not present:
            return []
        rows = self._read(table, present).slice(0, MAX_SMALL_ROWS)
        plain = {name: self._convert(table, rows[name], _plain) for name in present}
        return [{name: plain[name][i] if name in plain else None for name in columns} for i in range(rows.num_rows)]

    def _convert(self, table: str, column: pa.ChunkedArray, convert: Callable[[pa.ChunkedArray], _T]) -> _T:
        return _checked(lambda: convert(column), self._files[table])

    def _n_rows(self, table: str) -> int:
        if table not in self._files:
            return 0
        file = self._files[table]
        return _checked(lambda: _rows_of(file), file)

    def _read(self, table: str, columns: Sequence[str]) -> pa.Table:
        if not columns:
            return pa.table({})
        file = self._files[table]
        if (begun := self._expected.pop((table, *columns), None)) is not None:
            return _checked(begun.result, file)
        return _checked(lambda: _read_file(file, columns), file)


def holds_tables(path: Path) -> bool:
    """Whether the folder has a file that may be an exported table."""
    return any(_table_files(path))


def _table_files(path: Path) -> Iterator[Path]:
    return (file for file in path.iterdir() if file.suffix in _SUFFIXES)


def _schema_of(file: Path) -> pa.Schema:
    schema = pq.read_schema(file) if file.suffix == ".parquet" else _read_arrow(file).schema
    if len(set(schema.names)) < len(schema.names):
        raise ValueError("two columns have one name")
    return schema


def _rows_of(file: Path) -> int:
    return int(pq.read_metadata(file).num_rows) if file.suffix == ".parquet" else int(_read_arrow(file).num_rows)


def _read_file(file: Path, columns: Sequence[str]) -> pa.Table:
    if file.suffix != ".parquet":
        return _read_arrow(file).select(list(columns))
    _check_size(file)
    metadata = pq.read_metadata(file)
    _check_pages(file, metadata, columns)
    stored = (metadata.schema.column(index) for index in range(metadata.num_columns))
    texts = [leaf.path for leaf in stored if leaf.path in columns and leaf.physical_type == "BYTE_ARRAY"]
    # Tables are read side by side; columns read so too take half as much again of the processors' time.
    reader = pq.ParquetFile(file, metadata=metadata, read_dictionary=texts, page_checksum_verification=True)
    return _written_out(reader.read(columns=list(columns), use_threads=False), file)


def _check_pages(file: Path, metadata: Any, columns: Sequence[str]) -> None:
    """What the columns unfold to, whatever the footer says of it."""
    left = _MAX_READ_BYTES
    with pa.OSFile(os.fsencode(file)) as source:
        for index in range(metadata.num_row_groups):
            left -= unfolded_bytes(source, metadata.row_group(index), columns, left)
            if left < 0:
                raise HprofError(
                    f"{file} unfolds to more than {_MAX_READ_BYTES:,} bytes, the limit of one reading; export a part "
                    "of it with `--times`."
                )


def _written_out(table: pa.Table, file: Path) -> pa.Table:
    """Texts that were read as dictionaries, each in its row: a long one may be in millions of them."""
    for at, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type):
            lengths = (pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks)
            n_bytes = sum(pc.sum(each.cast(pa.int64())).as_py() or 0 for each in lengths)
            if n_bytes > _MAX_READ_BYTES:
                raise HprofError(
                    f"{file} holds texts of {n_bytes:,} bytes in '{table.column_names[at]}', more than "
                    f"{_MAX_READ_BYTES:,}; export a part of it with `--times`."
                )
            table = table.set_column(at, table.column_names[at], column.cast(column.type.value_type))
    return table


def _check_size(file: Path) -> None:
    """A few run-length bytes can stand for billions of rows; real tables hold times, of some bytes a row."""
    metadata = pq.read_metadata(file)
    limit = min(MAX_ROWS, _FREE_ROWS + file.stat().st_size)
    # Only whole row groups are asked for their size: arrow aborts the process on some damaged column entries.
    n_bytes = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    if not 0 <= metadata.num_rows <= limit or n_bytes > _MAX_BYTES:
        raise HprofError(
            f"{file} says that it holds {metadata.num_rows:,} rows in {file.stat().st_size:,} bytes, more than a real "
            "export would; export it again, or a part of it with `--times`."
        )


def _read_arrow(file: Path) -> pa.Table:
    """The IPC file or stream, memory-mapped: columns that nobody asks for are not read from disk."""
    source = pa.memory_map(str(file))
    try:
        return pa.ipc.open_file(source).read_all()
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_stream(source).read_all()


def _holds_integers(kind: pa.DataType) -> bool:
    """Whether `_int64` can read a column of this type."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    tests = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_timestamp, pa.types.is_duration)
    return any(is_one(kind) for is_one in tests)


def _int64(column: pa.ChunkedArray) -> Int64:
    column.validate(full=True)
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        column = column.cast(pa.timestamp("ns") if pa.types.is_timestamp(kind) else pa.duration("ns"))
    elif pa.types.is_uint64(kind):
        column = pc.if_else(pc.less(column, pa.scalar(1 << 63, pa.uint64())), column, None)
    elif not _holds_integers(kind):
        return absent(len(column))
    return from_arrow(column)


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column.validate(full=True)
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return pa.chunked_array([pa.nulls(len(column), pa.string())])
    texts = _utf8(column)
    longest = pc.max(pc.binary_length(texts)).as_py()
    if longest is not None and longest > MAX_TEXT_CHARS:
        texts = pc.utf8_slice_codeunits(texts, 0, MAX_TEXT_CHARS)
    return texts.cast(pa.string())


def _utf8(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """nsys writes what programs called things, whether or not that is UTF-8; arrow stops at what is not."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raw = column.cast(pa.large_binary(), safe=False)
        raw.validate(full=True)
        texts = (None if value is None else value.decode("utf-8", "replace") for value in raw.to_pylist())
        return pa.chunked_array([pa.array(texts, pa.large_string())])
    return column


def _plain(column: pa.ChunkedArray) -> list[Any]:
    column.validate(full=pa.types.is_primitive(column.type))
    values: list[Any] = (column if pa.types.is_primitive(column.type) else _text(column)).to_pylist()
    return values


def _checked(read: Callable[[], _T], file: Path) -> _T:
    try:
        return read()
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = first_line(error)
        raise HprofError(f"{file} cannot be read as an exported table ({reason}); run `nsys export` again.") from error
