"""Rows of a capture's table by number, read when somebody asks for them: a view of a long pass needs few of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from executor.errors import HprofError
from profiler.arithmetic.intervals import Int64
from profiler.schema import TABLES
from profiler.storage.parts import MAX_TABLE_ROWS, read_groups, reading
from profiler.storage.store import Store


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
