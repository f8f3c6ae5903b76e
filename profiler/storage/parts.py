"""Reads the parquet parts of a capture's tables: `read_parts` whole parts as tables, `StoredRows` rows by number.

A part belongs to the capture whose manifest names its mark: a run that replaces a capture, or an import, gives its
parts a mark of their own, so that they lie beside the old ones unseen until its manifest is put in place.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from executor.arrays import Flags, Int64
from executor.errors import HprofError
from profiler.schema import TABLES
from profiler.storage.decoding import (
    MAX_TABLE_BYTES,
    MAX_TABLE_ROWS,
    SUFFIX,
    count_part_rows,
    read_groups,
    reading,
)
from profiler.storage.possible_sizes import ImpossibleSizes
from profiler.storage.store import Store

GATHERED: Final = "all-"  # how the names of gathered parts begin (profiler/storage/compact.py); a recorder's never do
_MARKED: Final = re.compile(rf"(?:{GATHERED})?(new-[0-9a-f]{{8}}-)?")


def read_parts(
    store: Store,
    table_name: str,
    parts: Sequence[str],
    columns: Sequence[str],
    filters: pc.Expression | None = None,
    pass_ids: Collection[int] | None = None,
    impossible: ImpossibleSizes | None = None,
    promised: int = 0,
) -> Iterator[pa.Table]:
    """The rows of each named part as a table of `columns`, in the schema's types.

    `pass_ids` skips row groups that hold none of them, then keeps only those passes' rows; `filters` is an
    arrow expression over columns of the schema. `impossible` is told of the sizes that read as null because nothing
    can have them; `promised`: the rows that all parts hold at least. Raises HprofError that names the file it cannot
    read, or what is missing.
    """
    schema = pa.schema([TABLES[table_name].field(name) for name in columns])
    n_stored = n_rows = n_bytes = 0
    for part in parts:
        table, n_of_part, n_impossible = _read_part(store, part, table_name, filters, pass_ids, schema)
        if impossible is not None:
            impossible.note(table_name, part, n_impossible)
        n_stored += n_of_part
        n_rows += table.num_rows
        n_bytes += table.nbytes
        _check_amount(store, table_name, n_rows, n_bytes)
        yield table
    _check_promise(store, table_name, n_stored, promised)


def part_names(store: Store, table_name: str, mark: str | None = None) -> list[str]:
    """The names of a table's parts with this mark (None: any), sorted, without suffix; files under way are left out."""
    files = (name for name in store.entries(table_name) if name.endswith(SUFFIX) and not name.startswith("."))
    names = [name.removesuffix(SUFFIX) for name in files]
    return names if mark is None else [name for name in names if mark_of(name) == mark]


def mark_of(part: str) -> str:
    """The mark of the capture that a part was written for; empty for one that was written straight into its place."""
    found = _MARKED.match(part)
    return (found[1] if found is not None else None) or ""


def is_gathered(part: str) -> bool:
    """Whether a part is one that `compact.gather` wrote."""
    return part.startswith(GATHERED)


def count_rows(store: Store, table_name: str, parts: Sequence[str], promised: int = 0) -> int:
    """Rows of these parts by their footers. Raises as `read_parts` does."""
    n_stored = sum(count_part_rows(store, table_name, part) for part in parts)
    _check_promise(store, table_name, n_stored, promised)
    return n_stored


def _check_amount(store: Store, table_name: str, n_rows: int, n_bytes: int) -> None:
    if n_rows > MAX_TABLE_ROWS:
        raise HprofError(f"{store.where(table_name)} holds more than {MAX_TABLE_ROWS:,} rows; capture fewer passes.")
    if n_bytes > MAX_TABLE_BYTES:
        raise HprofError(
            f"{store.where(table_name)} takes more than {MAX_TABLE_BYTES:,} bytes of memory; capture fewer passes."
        )


def _check_promise(store: Store, table_name: str, n_stored: int, promised: int) -> None:
    if n_stored < promised:
        raise HprofError(
            f"{store.where(table_name)} holds {n_stored:,} rows and the capture's manifest promises {promised:,}; "
            "restore the missing parts, or capture again."
        )


def _read_part(
    store: Store,
    part: str,
    table_name: str,
    filters: pc.Expression | None,
    pass_ids: Collection[int] | None,
    schema: pa.Schema,
) -> tuple[pa.Table, int, int]:
    """Its rows that are asked for, how many it holds in all, and how many of its sizes are impossible."""
    full = TABLES[table_name]
    # A filter may look at any column, so with one all columns are read and the rest dropped afterwards.
    needed = full.names if filters is not None else [*schema.names, *(["pass_id"] if pass_ids is not None else [])]
    with reading(store, table_name, part) as file:
        groups = _row_groups(store, part, file, table_name, pass_ids)
        table, n_impossible = read_groups(store, part, file, groups, table_name, needed)
        if pass_ids is not None:
            table = _of_passes(table, pass_ids)
        if filters is not None:
            table = table.filter(filters)
        return table.select(schema.names), int(file.metadata.num_rows), n_impossible


def _row_groups(store: Store, part: str, file: Any, table_name: str, pass_ids: Collection[int] | None) -> list[int]:
    """The row groups that hold any of these passes, by reading their ids.

    Not by the footer's statistics: pyarrow ends the process when a damaged footer is asked for a column's.
    """
    if pass_ids is None or "pass_id" not in file.schema_arrow.names:
        return list(range(file.metadata.num_row_groups))
    ids_of_groups = _ids_of_groups(store, part, file, table_name)
    return [number for number, ids in enumerate(ids_of_groups) if _may_hold(ids, pass_ids)]


def _ids_of_groups(store: Store, part: str, file: Any, table_name: str) -> list[pa.ChunkedArray]:
    """The pass ids of each row group; null where the part has none."""
    n_stored = [_n_stored(file, number) for number in range(file.metadata.num_row_groups)]
    ids = read_groups(store, part, file, range(len(n_stored)), table_name, ["pass_id"])[0]["pass_id"]
    return [ids.slice(end - n, n) for n, end in zip(n_stored, accumulate(n_stored), strict=True)]


def _may_hold(ids: pa.ChunkedArray, pass_ids: Collection[int]) -> bool:
    edges = pc.min_max(ids).as_py()
    return edges["min"] is not None and any(edges["min"] <= pass_id <= edges["max"] for pass_id in pass_ids)


def _of_passes(table: pa.Table, pass_ids: Collection[int]) -> pa.Table:
    """Only these passes' rows; most parts hold a single pass, and then nothing is copied."""
    edges = pc.min_max(table["pass_id"]).as_py()
    if edges["min"] == edges["max"] and edges["min"] in pass_ids and table["pass_id"].null_count == 0:
        return table
    return table.filter(pc.is_in(table["pass_id"], pa.array(sorted(pass_ids), pa.int32())))


@dataclass(frozen=True, slots=True)
class _Group:
    """A row group that holds some of the rows; `rows` are their places in it, None: all of them."""

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
        self,
        store: Store,
        table_name: str,
        parts: Sequence[str],
        pass_ids: Collection[int] | None = None,
        promised: int = 0,
    ) -> None:
        self._store, self._table_name = store, table_name
        self._n_stored = 0
        self._parts = {part: self._groups_of(part, pass_ids) for part in parts}
        self._n_rows = sum(group.n_rows for groups in self._parts.values() for group in groups)
        _check_promise(store, table_name, self._n_stored, promised)
        _check_amount(store, table_name, self._n_rows, 0)

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
            numbers = [group.number for group in groups]
            table, _ = read_groups(self._store, part, file, numbers, self._table_name, columns)
        if all(group.rows is None for group in groups):
            return table
        first = np.cumsum([0, *(group.n_stored for group in groups)])
        places = [begin + _places(group) for begin, group in zip(first[:-1], groups, strict=True)]
        return table.take(pa.array(np.concatenate(places)))

    def _groups_of(self, part: str, pass_ids: Collection[int] | None) -> list[_Group]:
        with reading(self._store, self._table_name, part) as file:
            self._n_stored += int(file.metadata.num_rows)
            if pass_ids is None:
                groups = range(file.metadata.num_row_groups)
                found = [_Group(number, _n_stored(file, number), None) for number in groups]
            else:
                ids_of_groups = _ids_of_groups(self._store, part, file, self._table_name)
                found = [_group(number, ids, pass_ids) for number, ids in enumerate(ids_of_groups)]
        return [group for group in found if group.n_rows]

    def _joined(self, columns: Sequence[str], tables: Sequence[pa.Table]) -> pa.Table:
        wanted = list(columns)
        empty = TABLES[self._table_name].empty_table().select(wanted)
        return pa.concat_tables([empty, *(table.select(wanted) for table in tables)]).unify_dictionaries()


def _group(number: int, ids: pa.ChunkedArray, pass_ids: Collection[int]) -> _Group:
    edges = pc.min_max(ids).as_py()
    if edges["min"] == edges["max"] and edges["min"] in pass_ids and ids.null_count == 0:
        return _Group(number, len(ids), None)
    return _Group(number, len(ids), np.flatnonzero(_is_any(ids, pass_ids)))


def _is_any(ids: pa.ChunkedArray, pass_ids: Collection[int]) -> Flags:
    found: Flags = pc.is_in(ids, pa.array(sorted(pass_ids), pa.int32())).to_numpy()
    return found


def _places(group: _Group) -> Int64:
    return np.arange(group.n_stored) if group.rows is None else group.rows


def _n_stored(file: Any, number: int) -> int:
    return int(file.metadata.row_group(number).num_rows) if number < file.metadata.num_row_groups else -1
