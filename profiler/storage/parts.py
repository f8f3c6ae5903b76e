"""Reads the parquet parts of a capture's tables; each is somebody else's file until it has been checked.

`read_parts` gives whole parts as tables, `StoredRows` some rows by their numbers. Sizes that nothing can have,
negative or beyond any memory, read as null and are counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from executor.errors import HprofError, first_line
from profiler.arithmetic.intervals import Int64
from profiler.schema import TABLES
from profiler.storage.store import Store

# What a part may claim before it is refused: a few run-length bytes can stand for billions of rows.
MAX_ROW_GROUP_ROWS: Final = 1 << 22
MAX_ROW_GROUP_BYTES: Final = 1 << 30
MAX_TABLE_ROWS: Final = 200_000_000
_THRIFT_LIMIT: Final = 64 * 1024 * 1024
_SUFFIX: Final = ".parquet"


def read_parts(
    store: Store,
    table_name: str,
    parts: Sequence[str],
    columns: Sequence[str],
    filters: pc.Expression | None = None,
    pass_ids: Collection[int] | None = None,
    impossible: ImpossibleSizes | None = None,
) -> Iterator[pa.Table]:
    """The rows of each named part as a table of `columns`, in the schema's types.

    `pass_ids` skips row groups by their statistics, then keeps only those passes' rows; `filters` is an
    arrow expression over columns of the schema. `impossible` is told of the sizes that read as null because nothing
    can have them. Raises HprofError that names the file it cannot read.
    """
    schema = pa.schema([TABLES[table_name].field(name) for name in columns])
    n_rows = 0
    for part in parts:
        table, n_impossible = _read_part(store, part, table_name, filters, pass_ids, schema)
        if impossible is not None:
            impossible.note(table_name, part, n_impossible)
        n_rows += table.num_rows
        if n_rows > MAX_TABLE_ROWS:
            raise HprofError(
                f"{store.where(table_name)} holds more than {MAX_TABLE_ROWS:,} rows; capture fewer passes."
            )
        yield table


def part_names(store: Store, table_name: str) -> list[str]:
    """The names of a table's parts, sorted, without their suffix; files under way are left out."""
    names = store.entries(table_name)
    return [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX) and not name.startswith(".")]


def count_rows(store: Store, table_name: str, parts: Sequence[str]) -> int:
    """Rows of these parts by their footers. Raises HprofError that names the file it cannot read."""
    return sum(_read_footer(store, f"{table_name}/{part}{_SUFFIX}").num_rows for part in parts)


def _read_footer(store: Store, name: str) -> Any:
    with _told(store.where(name), "."), store.open(name) as source:
        return _opened(source).metadata


@contextmanager
def reading(store: Store, table_name: str, part: str) -> Iterator[Any]:
    """The open parquet file of a part, its sizes checked. Raises HprofError for what goes wrong inside."""
    name = f"{table_name}/{part}{_SUFFIX}"
    where = store.where(name)
    with _told(where, "; restore it, or remove it."), store.open(name) as source:
        file = _opened(source)
        _check_size(file.metadata, where)
        yield file


@contextmanager
def _told(where: str, advice: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise HprofError(f"{where} is not a readable parquet part ({first_line(error)}){advice}") from error


def _opened(source: Any) -> Any:
    return pq.ParquetFile(
        source, pre_buffer=True, thrift_string_size_limit=_THRIFT_LIMIT, thrift_container_size_limit=_THRIFT_LIMIT
    )


def _read_part(
    store: Store,
    part: str,
    table_name: str,
    filters: pc.Expression | None,
    pass_ids: Collection[int] | None,
    schema: pa.Schema,
) -> tuple[pa.Table, int]:
    full = TABLES[table_name]
    # A filter may look at any column, so with one all columns are read and the rest dropped afterwards.
    needed = full.names if filters is not None else [*schema.names, *(["pass_id"] if pass_ids is not None else [])]
    with reading(store, table_name, part) as file:
        names = file.schema_arrow.names
        table, n_impossible = read_groups(file, _row_groups(file, names, pass_ids), table_name, needed)
        if pass_ids is not None:
            table = _of_passes(table, pass_ids)
        if filters is not None:
            table = table.filter(filters)
        return table.select(schema.names), n_impossible


def read_groups(file: Any, groups: Sequence[int], table_name: str, columns: Collection[str]) -> tuple[pa.Table, int]:
    """Columns of some row groups, in the schema's order and types; those that the file lacks are null.

    And how many sizes in them are null because nothing can have such a size.
    """
    names = file.schema_arrow.names
    table = file.read_row_groups(groups, columns=[column for column in dict.fromkeys(columns) if column in names])
    return with_possible_sizes(_fit(table, TABLES[table_name], columns), table_name)


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


def _row_groups(file: Any, names: Sequence[str], pass_ids: Collection[int] | None) -> list[int]:
    """The row groups that hold any of these passes, by reading their ids.

    Not by the footer's statistics: pyarrow ends the process when a damaged footer is asked for a column's.
    """
    everything = list(range(file.metadata.num_row_groups))
    if pass_ids is None or "pass_id" not in names:
        return everything
    return [i for i in everything if _may_hold(file.read_row_group(i, columns=["pass_id"])["pass_id"], pass_ids)]


def _may_hold(ids: pa.ChunkedArray, pass_ids: Collection[int]) -> bool:
    edges = pc.min_max(ids).as_py()
    return edges["min"] is not None and any(edges["min"] <= pass_id <= edges["max"] for pass_id in pass_ids)


def _of_passes(table: pa.Table, pass_ids: Collection[int]) -> pa.Table:
    """Only these passes' rows; most parts hold a single pass, and then nothing is copied."""
    edges = pc.min_max(table["pass_id"]).as_py()
    if edges["min"] == edges["max"] and edges["min"] in pass_ids and table["pass_id"].null_count == 0:
        return table
    return table.filter(pc.is_in(table["pass_id"], pa.array(sorted(pass_ids), pa.int32())))


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


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group that holds some of the rows; `rows` are their places in it, null: all of them."""

    number: int
    n_stored: int
    rows: Int64 | None

    @property
    def n_rows(self) -> int:
        return self.n_stored if self.rows is None else len(self.rows)


class StoredRows:
    """The rows of some passes, numbered from 0 in the order of the parts and of the rows in them.

    Where they lie is found out once, by reading the ids of the passes. Raises HprofError that names the file it
    cannot read, here and later.
    """

    def __init__(
        self, store: Store, table_name: str, parts: Sequence[str], pass_ids: Collection[int] | None = None
    ) -> None:
        self._store, self._table_name = store, table_name
        self._parts = {part: self._groups_of(part, pass_ids) for part in parts}
        self._n_rows = sum(group.n_rows for groups in self._parts.values() for group in groups)
        if self._n_rows > MAX_TABLE_ROWS:
            raise HprofError(
                f"{store.where(table_name)} holds more than {MAX_TABLE_ROWS:,} rows; capture fewer passes."
            )

    def __len__(self) -> int:
        return self._n_rows

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Columns of all rows."""
        return self._joined(
            columns, [self._read(part, groups, columns) for part, groups in self._parts.items() if groups]
        )

    def take(self, numbers: Int64, columns: Sequence[str]) -> pa.Table:
        """Columns of the rows with these numbers (none twice), in their order; reads the row groups that hold them."""
        order = np.argsort(numbers, kind="stable")
        table = self._joined(columns, list(self._rising(numbers[order], columns)))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return table.take(pa.array(place))

    def _rising(self, numbers: Int64, columns: Sequence[str]) -> Iterator[pa.Table]:
        first = 0
        for part, groups in self._parts.items():
            edges = first + np.cumsum([0, *(group.n_rows for group in groups)])
            low, high = np.searchsorted(numbers, [first, edges[-1]])
            if low < high:
                at = np.searchsorted(edges, numbers[low:high], side="right") - 1
                used = np.unique(at)
                rows = self._read(part, [groups[i] for i in used.tolist()], columns)
                starts = np.cumsum([0, *(groups[i].n_rows for i in used.tolist())])
                shift = np.zeros(len(groups), np.int64)
                shift[used] = starts[:-1] - edges[used]
                yield rows.take(pa.array(numbers[low:high] + shift[at]))
            first = int(edges[-1])

    def _read(self, part: str, groups: Sequence[_Group], columns: Sequence[str]) -> pa.Table:
        with reading(self._store, self._table_name, part) as file:
            if any(_n_stored(file, group.number) != group.n_stored for group in groups):
                where = self._store.where(self._table_name)
                raise HprofError(f"{where} changed while it was looked at; load the page again.")
            table, _ = read_groups(file, [group.number for group in groups], self._table_name, columns)
        if all(group.rows is None for group in groups):
            return table
        first = np.cumsum([0, *(group.n_stored for group in groups)])
        places = [begin + _places(group) for begin, group in zip(first[:-1], groups, strict=True)]
        return table.take(pa.array(np.concatenate(places)))

    def _groups_of(self, part: str, pass_ids: Collection[int] | None) -> list[_Group]:
        with reading(self._store, self._table_name, part) as file:
            found = [_group(file, number, pass_ids) for number in range(file.metadata.num_row_groups)]
        return [group for group in found if group.n_rows]

    def _joined(self, columns: Sequence[str], tables: Sequence[pa.Table]) -> pa.Table:
        wanted = list(columns)
        empty = TABLES[self._table_name].empty_table().select(wanted)
        return pa.concat_tables([empty, *(table.select(wanted) for table in tables)]).unify_dictionaries()


def _group(file: Any, number: int, pass_ids: Collection[int] | None) -> _Group:
    n_stored = _n_stored(file, number)
    if pass_ids is None:
        return _Group(number, n_stored, None)
    if "pass_id" not in file.schema_arrow.names:
        return _Group(number, n_stored, np.empty(0, np.int64))
    ids = file.read_row_group(number, columns=["pass_id"])["pass_id"]
    edges = pc.min_max(ids).as_py()
    if edges["min"] == edges["max"] and edges["min"] in pass_ids and ids.null_count == 0:
        return _Group(number, n_stored, None)
    return _Group(number, n_stored, np.flatnonzero(_is_any(ids, pass_ids)))


def _is_any(ids: pa.ChunkedArray, pass_ids: Collection[int]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.is_in(ids.cast(pa.int32()), pa.array(sorted(pass_ids), pa.int32())).to_numpy()
    return found


def _places(group: _Group) -> Int64:
    return np.arange(group.n_stored) if group.rows is None else group.rows


def _n_stored(file: Any, number: int) -> int:
    return int(file.metadata.row_group(number).num_rows) if number < file.metadata.num_row_groups else -1


_MAX_COPY_BYTES: Final = 1 << 40  # of one row; what many rows add up to stays a number
_MAX_PASS_BYTES: Final = 1 << 53
_LIMITS: Final = {
    "events": dict.fromkeys(("bytes", "whole_bytes"), _MAX_COPY_BYTES),
    "passes": dict.fromkeys(("bytes_h2d", "vram_peak", "vram_resident", "vram_slots", "vram_bank"), _MAX_PASS_BYTES),
}


class ImpossibleSizes:
    """How many were met in a capture. A part may be read often, and in pieces: what most of one reading were counts."""

    def __init__(self) -> None:
        self._most: dict[tuple[str, str], int] = {}

    @property
    def total(self) -> int:
        """In all parts that have been read."""
        return sum(self._most.values())

    def note(self, table_name: str, part: str, number: int) -> None:
        """A reading of a part met this many."""
        self._most[table_name, part] = max(number, self._most.get((table_name, part), 0))


def with_possible_sizes(table: pa.Table, table_name: str) -> tuple[pa.Table, int]:
    """The rows of a table of the schema, impossible sizes as null, and how many these were."""
    n_impossible = 0
    for name, limit in _LIMITS.get(table_name, {}).items():
        if name not in table.column_names:
            continue
        edges = pc.min_max(table[name]).as_py()
        if edges["min"] is None or (edges["min"] >= 0 and edges["max"] <= limit):
            continue
        column = table[name]
        possible = pc.and_(pc.greater_equal(column, 0), pc.less_equal(column, limit))
        n_impossible += pc.sum(pc.invert(possible)).as_py()
        known = pc.if_else(possible, column, pa.scalar(None, column.type))
        table = table.set_column(table.column_names.index(name), table.schema.field(name), known)
    return table, n_impossible
