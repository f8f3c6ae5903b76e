"""Rows of an export as parallel int64 columns: made, cleaned, and turned into the arrow table `events`.

Names are small codes into one list of texts. Rows that cannot be are left out by the rules of
`profiler.importers.dropping`. `stats` uses the same rows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from executor.arrays import Flags, Int64
from profiler.arithmetic.joins import distinct, match
from profiler.importers.absent import absent, is_absent, is_known, known_where, taken, to_arrow
from profiler.importers.dropping import impossible_times, kept_rows
from profiler.importers.nsys.tables import TID_BITS, ExportTables, check_aligned
from profiler.schema import EVENT_KINDS, EVENTS, H2D, MEMORIES, role_of

# What a row holds; a part that does not name a column has no value in it. Label columns hold codes.
COLUMNS: Final = (
    *("start", "end", "process", "device", "context", "stream", "thread", "correlation"),
    *("kind", "name", "bytes", "memory", "detail"),
)
_KIND_CODES: Final = {kind: code for code, kind in enumerate(EVENT_KINDS)}


@dataclass(slots=True)
class EventRows:
    """Parallel columns, see COLUMNS. `thread` is nsys's whole globalTid, `process` the same >> 24."""

    columns: dict[str, Int64]

    def __len__(self) -> int:
        return len(self.columns["start"])

    def __getitem__(self, name: str) -> Int64:
        return self.columns[name]

    def where(self, mask: Flags) -> EventRows:
        """Only the rows that `mask` keeps."""
        return EventRows({name: values[mask] for name, values in self.columns.items()})

    def part(self, rows: slice) -> EventRows:
        """A view of some neighbouring rows."""
        return EventRows({name: values[rows] for name, values in self.columns.items()})

    def shifted(self, by_ns: int) -> EventRows:
        """The same rows, later."""
        return EventRows(self.columns | {name: self.columns[name] + by_ns for name in ("start", "end")})


def make_rows(kind: str | Int64, **given: Int64 | int) -> EventRows:
    """Rows of one kind (or of kind codes); scalars are repeated, missing columns have no value."""
    n_rows = len(np.asarray(given["start"]))
    kinds = _KIND_CODES[kind] if isinstance(kind, str) else kind
    values: Mapping[str, Int64 | int] = {"kind": kinds, **given}
    none = absent(1)
    return EventRows(
        {name: np.broadcast_to(np.asarray(values.get(name, none), np.int64), (n_rows,)) for name in COLUMNS}
    )


def kind_code(kind: str) -> int:
    """The code of an event kind in the `kind` column."""
    return _KIND_CODES[kind]


def concatenate(parts: Sequence[EventRows]) -> EventRows:
    """The rows of all parts."""
    return EventRows({name: np.concatenate([part[name] for part in parts]) for name in COLUMNS})


def is_explicit_h2d(rows: EventRows, texts: Sequence[str]) -> Flags:
    """Which rows are explicit host to device copies, as `schema.role_of` has it; texts: what the codes mean."""
    is_h2d = rows["kind"] == kind_code("h2d")
    details = np.unique(rows["detail"][is_h2d]).tolist()
    explicit = [code for code in details if role_of("h2d", texts[code] if code >= 0 else None) == H2D]
    found: Flags = is_h2d & np.isin(rows["detail"], explicit)
    return found


def compacted(codes: Int64, texts: Sequence[str]) -> tuple[Int64, list[str]]:
    """The same codes over only the texts that occur."""
    used = np.zeros(len(texts), np.bool_)
    used[codes[codes >= 0]] = True
    kept = [text for text, keep in zip(texts, used.tolist(), strict=True) if keep]
    return taken(np.cumsum(used) - 1, codes), kept


_MAX_TABLE: Final = 1 << 21
_API_VERSION: Final = re.compile(r"_v\d+$")


class TextCodes:
    """Codes for texts. `code(text)` for one, `of_ids(ids)` for a column of StringIds; no value where unknown."""

    def __init__(self, tables: ExportTables) -> None:
        ids = tables.ints("StringIds", ["id"])["id"]
        values = tables.texts("StringIds", "value")
        check_aligned("StringIds", ids, values)
        order = np.argsort(ids, kind="stable")
        self._ids = ids[order]
        self._values = values.combine_chunks().take(pa.array(order))
        self._codes: dict[str, int] = {}
        self._row_of_id: Int64 | None = None
        if len(order) and self._ids[0] >= 0 and self._ids[-1] < _MAX_TABLE:
            self._row_of_id = np.zeros(self._ids[-1] + 1, np.int64)
            self._row_of_id[self._ids[::-1]] = np.arange(len(order))[::-1]

    def code(self, text: str) -> int:
        """The code of a text, a new one where needed."""
        return self._codes.setdefault(text, len(self._codes))

    def of_ids(self, ids: Int64, clean: Callable[[str], str] | None = None) -> Int64:
        """Codes of StringIds; `clean` changes a text first. A repeated id means its first row."""
        if self._row_of_id is not None:
            return self._of_small_ids(ids, self._row_of_id, clean)
        at, known = self._find(ids)
        if len(self._ids) == 0:
            return at
        return known_where(known, self._translation(at[known], clean)[at])

    def _of_small_ids(self, ids: Int64, row_of_id: Int64, clean: Callable[[str], str] | None) -> Int64:
        """As `of_ids`, by a table of codes by id: a trace has many rows and few names."""
        none = len(row_of_id)
        place = np.where((ids >= 0) & (ids < none), ids, none)
        is_used = np.zeros(none + 1, np.bool_)
        is_used[place] = True
        used = np.flatnonzero(is_used[:none])
        used = used[self._ids[row_of_id[used]] == used]
        codes = absent(none + 1)
        codes[used] = self._translation(row_of_id[used], clean)[row_of_id[used]]
        return codes[place]

    def _find(self, ids: Int64) -> tuple[Int64, Flags]:
        """Where each id lies among the sorted ones (nowhere, if there are none), and whether it is there."""
        if len(self._ids) == 0:
            return absent(len(ids)), np.zeros(len(ids), np.bool_)
        at = self._rows_of(ids)
        return at, (self._ids[at] == ids) & is_known(ids)

    def _rows_of(self, ids: Int64) -> Int64:
        """Some row for each id; the right one where the id is there. Usual ids are small: a table of them."""
        if self._row_of_id is not None:
            return self._row_of_id[np.clip(ids, 0, len(self._row_of_id) - 1)]
        at = np.searchsorted(self._ids, ids)
        at[at == len(self._ids)] = 0
        return at

    def values_of_ids(self, ids: Int64) -> tuple[Int64, pa.StringArray]:
        """For columns with names by the 100,000: codes into the strings beside them, no value where unknown."""
        at, known = self._find(ids)
        used = np.zeros(len(self._ids), np.bool_)
        used[at[known]] = True
        codes = np.cumsum(used) - 1
        strings = self._values.filter(pa.array(used))
        return (known_where(known, codes[at]) if len(codes) else at), strings

    @property
    def texts(self) -> list[str]:
        """All texts, by code."""
        return list(self._codes)

    def _translation(self, used_rows: Int64, clean: Callable[[str], str] | None) -> Int64:
        used = np.zeros(len(self._ids), np.bool_)
        used[used_rows] = True
        rows = np.flatnonzero(used)
        codes = absent(len(self._ids))
        for row, text in zip(rows.tolist(), self._values.take(pa.array(rows)).to_pylist(), strict=True):
            if text is not None:
                codes[row] = self.code(clean(text) if clean else text)
        return codes


def api_name(text: str) -> str:
    """`cudaMemcpyAsync_v3020` -> `cudaMemcpyAsync`: runtime calls carry the version that introduced them."""
    return _API_VERSION.sub("", text)


def correlation_of(read: dict[str, Int64]) -> Int64:
    """The number of the call that launched each row; 0 is CUPTI's word for none."""
    return known_where(read["correlationId"] > 0, read["correlationId"])


def process_of(global_id: Int64) -> Int64:
    """<hw:8><vm:8><pid:24> of a globalPid or globalTid, where there is one."""
    return known_where(is_known(global_id), global_id >> TID_BITS)


def matched(scope: Int64, number: Int64, other_scope: Int64, other_number: Int64) -> Int64:
    """As `joins.match`, with no value where there is no match."""
    found = match(scope, number, other_scope, other_number)
    is_found, row = np.zeros(len(number), np.bool_), np.zeros(len(number), np.int64)
    is_found[found.row], row[found.row] = True, found.other
    return known_where(is_found, row)


class _Maskable(Protocol):
    def __len__(self) -> int: ...
    def where(self: _T, mask: Flags) -> _T: ...


_T = TypeVar("_T", bound=_Maskable)


def drop(rows: _T, what: str, reasons: Mapping[str, Flags], dropped: Counter[str]) -> _T:
    """Without the rows that any of `reasons` marks, which are counted."""
    kept = kept_rows(what, reasons, dropped)
    return rows if kept.all() else rows.where(kept)


def impossible(start: Int64, end: Int64, *, on_device: bool) -> dict[str, Flags]:
    """As `impossible_times`. CUPTI says 0 and 0 where it could not collect the times of device work."""
    untimed = is_absent(start) | is_absent(end)
    if on_device:
        untimed |= (start == 0) & (end == 0)
    return impossible_times(start, end, untimed)


_MAX_PACKED: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class StreamLines:
    """The distinct (process, device, context, stream) that rows lie on."""

    keys: Int64  # (number of streams, 4)
    line: Int64  # of each row, into `keys`


def distinct_streams(rows: EventRows) -> StreamLines:
    """The streams of all rows, in the order that they come."""
    names = ("process", "device", "context", "stream")
    packed = np.zeros(len(rows), np.int64)
    for name in names:
        values, code = distinct(rows[name])
        if len(packed) and len(values) * (int(packed.max()) + 1) > _MAX_PACKED:
            packed = distinct(packed)[1]
        packed = packed * len(values) + code
    found, line = distinct(packed)
    first = np.zeros(len(found), np.int64)
    first[line[::-1]] = np.arange(len(line))[::-1]
    return StreamLines(np.stack([rows[name][first] for name in names], axis=1), line)


def event_table(
    rows: EventRows, texts: Sequence[str], extra: Mapping[str, Int64], labels: Mapping[str, Sequence[str]]
) -> pa.Table:
    """Rows as the `events` table.

    texts: what `name` and `detail` codes mean. extra: more columns of the schema. labels: what the codes of the label
    columns in `extra` mean.
    """
    columns: dict[str, pa.Array] = {
        "process": to_arrow(rows["process"], pa.int64()),
        "device": to_arrow(rows["device"], pa.int32()),
        "t_start": to_arrow(rows["start"], pa.int64()),
        "t_end": to_arrow(rows["end"], pa.int64()),
        "bytes": to_arrow(rows["bytes"], pa.int64()),
        "correlation_id": to_arrow(rows["correlation"], pa.int64()),
        "kind": _labels(rows["kind"], EVENT_KINDS),
        "name": _labels(*compacted(rows["name"], texts)),
        "source_memory": _labels(rows["memory"], MEMORIES),
        "detail": _labels(*compacted(rows["detail"], texts)),
    }
    for name, values in extra.items():
        known = labels.get(name)
        columns[name] = to_arrow(values, EVENTS.field(name).type) if known is None else _labels(values, known)
    # One column of nulls a type serves all that the source does not tell: of 10 M rows they would take a GB.
    nothing = {field.type: pa.nulls(len(rows), field.type) for field in EVENTS if field.name not in columns}
    arrays = [columns[field.name] if field.name in columns else nothing[field.type] for field in EVENTS]
    return pa.Table.from_arrays(arrays, schema=EVENTS)


def _labels(codes: Int64, texts: Sequence[str]) -> pa.DictionaryArray:
    small = codes.astype(np.int32)  # no value wraps to 0, so the mask comes from the whole number
    missing = codes < 0
    indices = pa.array(small, pa.int32(), mask=missing if missing.any() else None)
    return pa.DictionaryArray.from_arrays(indices, pa.array(texts, pa.string()), safe=False)
