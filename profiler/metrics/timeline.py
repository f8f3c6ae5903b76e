"""The rows of one pass laid out in lanes, as a timeline draws them: which lane a row belongs to, when each lane was
busy, and which copies were exposed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from executor.arrays import Flags, Int64
from profiler.arithmetic.groups import group_by, sum_by
from profiler.arithmetic.intervals import MAX_ABS_NS, Intervals, union
from profiler.metrics.events import EVENT_COLUMNS, Codes, ints
from profiler.metrics.overlap import exposed, exposed_ns
from profiler.schema import ABSENT, COMPUTE, H2D, KERNEL_STREAM, label_codes, role_of

if TYPE_CHECKING:
    from profiler.capture import Capture

# In the order of the lanes of one device.
CATEGORIES: Final = ("h2d", "d2h", "d2d", "compute", "wait", "cpu_compute", "api")
_HOST_CATEGORIES: Final = ("cpu_compute", "api")
_STREAM_CATEGORIES: Final = ("h2d", "d2h", "d2d", "compute")
_CATEGORY_OF_KIND: Final = {name: name for name in CATEGORIES} | {"sync": "wait"}
MAX_STREAMS: Final = 8  # lanes a category of a device is split into, at most


class Lane(NamedTuple):
    """One line of the drawing. `process` and `device` are None where the rows do not say; `stream` where merged."""

    category: str
    process: int | None
    device: int | None
    stream: str | None


class Kinds(NamedTuple):
    """The kinds of rows that a table has: a process's, on a device, on a stream, of a category.

    `of_row` is each row's kind; the others have one element a kind, ABSENT where its rows do not say.
    """

    of_row: Int64
    process: Int64
    device: Int64  # ABSENT also of what ran on the host
    stream: Int64  # indexes stream_names
    category: Int64  # indexes CATEGORIES
    role: Codes
    stream_names: tuple[str, ...]

    @classmethod
    def of(cls, table: pa.Table) -> Kinds:
        """Of a table with the columns process, device, stream, kind and detail."""
        coded = {name: label_codes(table[name]) for name in ("stream", "kind", "detail")}
        numbers = {name: ints(table[name], np.int64) for name in ("process", "device")}
        found = group_by(numbers | {name: codes for name, (codes, _) in coded.items()})
        kinds, details = ([*coded[name][1], None] for name in ("kind", "detail"))  # ABSENT is -1, the last
        pairs = [
            (kinds[kind], details[detail])
            for kind, detail in zip(found.keys["kind"].tolist(), found.keys["detail"].tolist(), strict=True)
        ]
        category = np.array([CATEGORIES.index(_CATEGORY_OF_KIND.get(kind or "", "api")) for kind, _ in pairs], np.int64)
        return cls(
            of_row=found.of_row,
            process=found.keys["process"],
            device=np.where(_is_of(category, _HOST_CATEGORIES), ABSENT, found.keys["device"]),
            stream=found.keys["stream"],
            category=category,
            role=np.array([role_of(*pair) for pair in pairs], np.int8),
            stream_names=coded["stream"][1],
        )

    def lanes(self, length: Int64 | None) -> tuple[tuple[Lane, ...], Int64]:
        """The lanes in the order to draw them, and the lane of each kind.

        length: of every row, for a lane a stream where something copies or computes, at most MAX_STREAMS a category,
        the least busy ones together; None: a lane a category, and one of the kernels that ran inside steps.
        """
        stream = self._kernels_apart() if length is None else self._busiest(length)
        groups = group_by(self._parents | {"stream": stream})
        keys = (groups.keys[name].tolist() for name in ("process", "device", "category", "stream"))
        lanes = [
            Lane(CATEGORIES[c], _known(p), _known(d), self.stream_names[s] if s >= 0 else None)
            for p, d, c, s in zip(*keys, strict=True)
        ]
        # Host rows say no device, which sorts first; a reader looks for the devices first.
        places = sorted(range(len(lanes)), key=lambda i: (groups.keys["process"][i], lanes[i].device is None, i))
        rank = np.empty(len(lanes), np.int64)
        rank[places] = np.arange(len(lanes))
        return tuple(lanes[i] for i in places), rank[groups.of_row]

    @property
    def _parents(self) -> dict[str, Int64]:
        return {"process": self.process, "device": self.device, "category": self.category}

    def _kernels_apart(self) -> Int64:
        """The stream of kernels that ran inside steps, whose rows they would cover; ABSENT for all else."""
        is_kernel = np.array([name == KERNEL_STREAM for name in self.stream_names] + [False], np.bool_)
        return np.where(is_kernel[self.stream], self.stream, ABSENT)

    def _busiest(self, length: Int64) -> Int64:
        """The stream of what copies or computes; ABSENT for all but the busiest of an overfull category."""
        on_stream = _is_of(self.category, _STREAM_CATEGORIES)
        lanes = group_by(self._parents | {"stream": np.where(on_stream, self.stream, ABSENT)})
        busy = lanes.sum(sum_by(self.of_row, length, len(self.process)))
        parents = group_by({name: lanes.keys[name] for name in self._parents})
        by_busy = np.lexsort((-busy, parents.of_row))
        rank = np.empty(len(lanes), np.int64)
        rank[by_busy] = np.arange(len(lanes)) - np.searchsorted(parents.of_row[by_busy], parents.of_row[by_busy])
        n_streams = parents.count()[parents.of_row]
        merged = (rank >= MAX_STREAMS - 1) & (n_streams > MAX_STREAMS)
        return np.where(merged | (n_streams == 1), ABSENT, lanes.keys["stream"])[lanes.of_row]


def _is_of(category: Int64, names: tuple[str, ...]) -> Flags:
    is_one: Flags = np.array([name in names for name in CATEGORIES])[category]
    return is_one


def _known(value: int) -> int | None:
    return None if value == ABSENT else value


_OUTERMOST: Final = 0.005  # of the devices' busy time
TIMELINE_COLUMNS: Final = (
    *EVENT_COLUMNS,
    *("name", "n_tokens", "n_experts", "slot", "correlation_id", "waits_for"),
)
# What the layout is made of; all other columns are only looked at for the rows that someone asks for.
_LAYOUT_COLUMNS: Final = ("process", "device", "stream", "kind", "detail", "t_start", "t_end")


class RowSource(Protocol):
    """Where the columns of a timeline's rows come from: a table in memory, or a capture's files."""

    def take(self, numbers: Int64, columns: Sequence[str]) -> pa.Table:
        """Columns of the rows with these numbers, in this order."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows of a table in memory."""

    table: pa.Table

    def take(self, numbers: Int64, columns: Sequence[str]) -> pa.Table:
        """As RowSource."""
        return self.table.select(list(columns)).take(pa.array(numbers))


@dataclass(frozen=True)
class Timeline:
    """Rows of one pass (or of a whole capture), sorted by lane, then by start. Times are ns after `origin_ns`.

    Rows without possible times are left out. `start`, `end`, `role` and `number` have one element a sorted row.
    """

    source: RowSource
    number: Int64  # the row's number in the source
    role: Codes  # indexes ROLES
    lanes: tuple[Lane, ...]
    first: Int64  # lane i is the sorted rows first[i]:first[i + 1]
    start: Int64
    end: Int64
    origin_ns: int

    def __len__(self) -> int:
        return len(self.start)

    def rows(self, lane: int) -> slice:
        """The sorted rows of a lane."""
        return slice(int(self.first[lane]), int(self.first[lane + 1]))

    def table(self, columns: Sequence[str] = TIMELINE_COLUMNS, rows: slice | Int64 = slice(None)) -> pa.Table:
        """Columns (of TIMELINE_COLUMNS) of some sorted rows, in their order; of all rows by default.

        Raises HprofError where they are read from a capture whose files changed.
        """
        return self.source.take(self.number[rows], columns)

    @cached_property
    def extent(self) -> tuple[int, int]:
        """First start and last end, in ns after the origin; (0, 0) without rows."""
        return (int(self.start.min()), int(self.end.max())) if len(self) else (0, 0)

    @cached_property
    def busy(self) -> tuple[Intervals, ...]:
        """When each lane was busy with anything; made once, on first use."""
        return tuple(union(self.start[rows], self.end[rows]) for rows in map(self.rows, range(len(self.lanes))))

    @cached_property
    def at_work(self) -> tuple[int, int]:
        """From where to where devices copied and computed, in ns after the origin, but for the first and the last
        half percent of that time: a few early calls are no work. The extent where no device did anything.
        """
        lanes = zip(self.lanes, self.busy, strict=True)
        on_device = [busy for lane, busy in lanes if lane.device is not None and lane.category in _STREAM_CATEGORIES]
        if not sum(len(one.starts) for one in on_device):
            return self.extent
        starts, ends = (np.concatenate([one[edge] for one in on_device]) for edge in (0, 1))
        worked = union(starts, ends)
        so_far = np.cumsum(worked.ends - worked.starts)
        first, last = np.searchsorted(so_far, [so_far[-1] * _OUTERMOST, so_far[-1] * (1 - _OUTERMOST)])
        return int(worked.starts[first]), int(worked.ends[last])

    @cached_property
    def latest_end(self) -> tuple[Int64, ...]:
        """For each row of each lane the latest end so far; made once, on first use."""
        return tuple(np.maximum.accumulate(self.end[rows]) for rows in map(self.rows, range(len(self.lanes))))

    @cached_property
    def weights_and_compute(self) -> tuple[tuple[Intervals, Intervals] | None, ...]:
        """For each lane when it copied from host to device on explicit request, and when its device computed; None for
        lanes without such copies. Made once, on first use."""
        return tuple(
            None if copies is None else (copies, compute_beside(self, lane, self.extent))
            for lane, copies in enumerate(weight_copies(self, self.rows(lane)) for lane in range(len(self.lanes)))
        )

    @cached_property
    def exposed(self) -> tuple[Intervals | None, ...]:
        """For each lane the parts of those copies that no compute covered. Made once, on first use."""
        return tuple(None if found is None else exposed(*found) for found in self.weights_and_compute)


def load_timeline(
    capture: Capture,
    pass_ids: Collection[int] | None = None,
    *,
    origin_ns: int | None = None,
    by_stream: bool = False,
    on_demand: bool = False,
) -> Timeline:
    """Read and lay out the rows of some passes, or all rows; see `timeline`.

    on_demand: read only what the layout needs; `Timeline.table` reads other columns when asked, from the row groups
    that hold the rows. For passes of which only a stretch is looked at.
    """
    if not on_demand:
        table = capture.table("events", TIMELINE_COLUMNS, pass_ids=pass_ids)
        return timeline(table, origin_ns=origin_ns, by_stream=by_stream)
    rows = capture.rows("events", pass_ids)
    return timeline(rows.table(_LAYOUT_COLUMNS), origin_ns=origin_ns, by_stream=by_stream, source=rows)


def timeline(
    table: pa.Table, *, origin_ns: int | None = None, by_stream: bool = False, source: RowSource | None = None
) -> Timeline:
    """Lay out a table of TIMELINE_COLUMNS.

    origin_ns: what counts as zero (None: the earliest start). by_stream: a lane for each stream that copies or
    computes, at most MAX_STREAMS a category, the least busy ones together; otherwise one lane a category.
    source: has the same rows with all columns, where `table` has only those of the layout.
    """
    kept = _possible(table)
    table_of_kept = table if kept is None else table.take(pa.array(kept))
    start, end = (ints(table_of_kept[name], np.int64) for name in ("t_start", "t_end"))
    kinds = Kinds.of(table_of_kept)
    lanes, lane_of_kind = kinds.lanes(end - start if by_stream else None)
    order, first = _sorted_rows(lane_of_kind[kinds.of_row], start, len(lanes))
    if origin_ns is None:
        origin_ns = int(start.min()) if len(start) else 0
    return Timeline(
        source=TableRows(table) if source is None else source,
        number=order if kept is None else kept[order],
        role=kinds.role[kinds.of_row[order]],
        lanes=lanes,
        first=first,
        start=start[order] - origin_ns,
        end=end[order] - origin_ns,
        origin_ns=origin_ns,
    )


def rows_between(line: Timeline, lane: int, window: tuple[int, int]) -> slice:
    """The lane's sorted rows that touch [t0, t1), and perhaps a few among them that ended earlier."""
    rows = line.rows(lane)
    low = int(np.searchsorted(line.latest_end[lane], window[0], side="right"))
    high = int(np.searchsorted(line.start[rows], window[1], side="left"))
    return slice(rows.start + low, rows.start + max(low, high))


def weight_copies(line: Timeline, rows: slice) -> Intervals | None:
    """When any of these rows copied from host to device on explicit request; None where none did."""
    copied = line.role[rows] == H2D
    return union(*_where(line, rows, copied)) if copied.any() else None


def _where(line: Timeline, rows: slice, mask: Flags) -> tuple[Int64, Int64]:
    """Starts and ends of the rows that the mask keeps; most lanes hold one kind of work, and then nothing is copied."""
    start, end = line.start[rows], line.end[rows]
    return (start, end) if mask.all() else (start[mask], end[mask])


def compute_beside(line: Timeline, lane: int, window: tuple[int, int]) -> Intervals:
    """When the lane's device computed, as far as it touches the window."""
    mine = line.lanes[lane]
    found = []
    for other, key in enumerate(line.lanes):
        if key.category == "compute" and (key.process, key.device) == (mine.process, mine.device):
            rows = rows_between(line, other, window)
            found.append(_where(line, rows, line.role[rows] == COMPUTE))
    if len(found) == 1:
        return union(*found[0])
    none = np.empty(0, np.int64)
    return union(*(np.concatenate([none, *(one[edge] for one in found)]) for edge in (0, 1)))


def exposed_copies(line: Timeline, lane: int, window: tuple[int, int]) -> Intervals | None:
    """The parts of the lane's host to device copies that no compute of its device covered, as far as they touch the
    window; None where the lane holds no such copies there."""
    if window == line.extent:
        return line.exposed[lane]
    copies = weight_copies(line, rows_between(line, lane, window))
    return None if copies is None else exposed(copies, compute_beside(line, lane, window))


def lane_figures(line: Timeline) -> pd.DataFrame:
    """One row a lane: category, process, device, stream, events, busy_ns, exposed_ns, bytes, gb_s (bytes / busy_ns).

    Null where the rows do not say, and exposed_ns where the lane holds no host to device copies.
    """
    n_bytes = pc.fill_null(line.table(["bytes"])["bytes"], ABSENT).to_numpy()
    return pd.DataFrame([_lane_row(line, n_bytes, number) for number in range(len(line.lanes))])


def _lane_row(line: Timeline, n_bytes: Int64, number: int) -> dict[str, object]:
    rows, beside = line.rows(number), line.weights_and_compute[number]
    sizes, busy_ns = n_bytes[rows], line.busy[number].total
    moved = int(sizes.sum()) if len(sizes) and bool((sizes >= 0).all()) else None
    return {
        **line.lanes[number]._asdict(),
        "events": rows.stop - rows.start,
        "busy_ns": busy_ns,
        "exposed_ns": None if beside is None else exposed_ns(*beside),
        "bytes": moved,
        "gb_s": moved / busy_ns if moved is not None and busy_ns else None,
    }


def _possible(table: pa.Table) -> Int64 | None:
    """The rows with possible times, as `Events` has it; None: all of them."""
    start, end = ints(table["t_start"], np.int64, MAX_ABS_NS + 1), ints(table["t_end"], np.int64, -MAX_ABS_NS - 1)
    possible = (start >= -MAX_ABS_NS) & (end <= MAX_ABS_NS) & (end >= start)
    return None if possible.all() else np.flatnonzero(possible)


def _sorted_rows(lane_of: Int64, start: Int64, n_lanes: int) -> tuple[Int64, Int64]:
    found = []
    for lane in range(n_lanes):
        rows = np.flatnonzero(lane_of == lane)
        times = start[rows]
        if not bool((times[1:] >= times[:-1]).all()):
            rows = rows[np.argsort(times, kind="stable")]
        found.append(rows)
    first = np.concatenate([[0], np.cumsum([len(rows) for rows in found])]).astype(np.int64)
    return np.concatenate(found) if found else np.empty(0, np.int64), first
