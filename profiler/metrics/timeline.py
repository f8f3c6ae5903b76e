"""The rows of one pass laid out in lanes, as a timeline draws them: who was busy when, which copies were exposed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from profiler.intervals import MAX_ABS_NS, Int64, Intervals, subtract, union
from profiler.metrics.events import EVENT_COLUMNS, Events, labels
from profiler.metrics.groups import group_by
from profiler.metrics.roles import ABSENT, COMPUTE, H2D
from profiler.schema import KERNEL_STREAM

if TYPE_CHECKING:
    from profiler.capture import Capture

TIMELINE_COLUMNS: Final = (
    *EVENT_COLUMNS,
    *("name", "n_tokens", "n_experts", "slot", "correlation_id", "waits_for"),
)
# In the order of the lanes of one device.
CATEGORIES: Final = ("h2d", "d2h", "d2d", "compute", "wait", "cpu_compute", "api")
_HOST_CATEGORIES: Final = ("cpu_compute", "api")
_STREAM_CATEGORIES: Final = ("h2d", "d2h", "d2d", "compute")
_CATEGORY_OF_KIND: Final = {name: name for name in CATEGORIES} | {"sync": "wait"}
MAX_STREAMS: Final = 8  # lanes a category of a device is split into, at most


class Lane(NamedTuple):
    """One line of the drawing. `process` and `device` are null where the rows do not say; `stream` where merged."""

    category: str
    process: int | None
    device: int | None
    stream: str | None


@dataclass(frozen=True)
class Timeline:
    """Rows of one pass (or of a whole capture), sorted by lane, then by start. Times are ns after `origin_ns`."""

    table: pa.Table  # TIMELINE_COLUMNS, as read; rows without possible times are left out
    events: Events  # the same rows as arrays
    order: Int64  # row of `table` of each sorted row
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

    @cached_property
    def extent(self) -> tuple[int, int]:
        """First start and last end, in ns after the origin; (0, 0) without rows."""
        return (int(self.start.min()), int(self.end.max())) if len(self) else (0, 0)

    @cached_property
    def busy(self) -> tuple[Intervals, ...]:
        """When each lane was busy with anything; made once, on first use."""
        return tuple(union(self.start[rows], self.end[rows]) for rows in map(self.rows, range(len(self.lanes))))

    @cached_property
    def latest_end(self) -> tuple[Int64, ...]:
        """For each row of each lane the latest end so far; made once, on first use."""
        return tuple(np.maximum.accumulate(self.end[rows]) for rows in map(self.rows, range(len(self.lanes))))

    @cached_property
    def weights_and_compute(self) -> tuple[tuple[Intervals, Intervals] | None, ...]:
        """For each lane when it copied from host to device on explicit request, and when its device computed; null for
        lanes without such copies. Made once, on first use."""
        return tuple(
            None if copies is None else (copies, compute_beside(self, lane, self.extent))
            for lane, copies in enumerate(weight_copies(self, self.rows(lane)) for lane in range(len(self.lanes)))
        )


def load_timeline(
    capture: Capture, pass_ids: Collection[int] | None = None, *, origin_ns: int | None = None, by_stream: bool = False
) -> Timeline:
    """Read and lay out the rows of some passes, or all rows; see `timeline`."""
    table = capture.table("events", TIMELINE_COLUMNS, pass_ids=pass_ids)
    return timeline(table, origin_ns=origin_ns, by_stream=by_stream)


def timeline(table: pa.Table, *, origin_ns: int | None = None, by_stream: bool = False) -> Timeline:
    """Lay out a table of TIMELINE_COLUMNS.

    origin_ns: what counts as zero (null: the earliest start). by_stream: a lane for each stream that copies or
    computes, at most MAX_STREAMS a category, the least busy ones together; otherwise one lane a category.
    """
    table = _possible(table)
    events = Events.from_table(table)
    lanes, lane_of = _lanes(events, table["kind"], by_stream=by_stream)
    order, first = _sorted_rows(lane_of, events.start, len(lanes))
    if origin_ns is None:
        origin_ns = int(events.start.min()) if len(events) else 0
    start, end = events.start[order] - origin_ns, events.end[order] - origin_ns
    return Timeline(table, events, order, lanes, first, start, end, origin_ns)


def rows_between(line: Timeline, lane: int, window: tuple[int, int]) -> slice:
    """The lane's sorted rows that touch [t0, t1), and perhaps a few among them that ended earlier."""
    rows = line.rows(lane)
    low = int(np.searchsorted(line.latest_end[lane], window[0], side="right"))
    high = int(np.searchsorted(line.start[rows], window[1], side="left"))
    return slice(rows.start + low, rows.start + max(low, high))


def weight_copies(line: Timeline, rows: slice) -> Intervals | None:
    """When any of these rows copied from host to device on explicit request; null where none did."""
    copied = line.events.role[line.order[rows]] == H2D
    return union(line.start[rows][copied], line.end[rows][copied]) if copied.any() else None


def compute_beside(line: Timeline, lane: int, window: tuple[int, int]) -> Intervals:
    """When the lane's device computed, as far as it touches the window."""
    starts, ends = [], []
    for other, key in enumerate(line.lanes):
        if key.category == "compute" and (key.process, key.device) == (
            line.lanes[lane].process,
            line.lanes[lane].device,
        ):
            rows = rows_between(line, other, window)
            computed = line.events.role[line.order[rows]] == COMPUTE
            starts.append(line.start[rows][computed])
            ends.append(line.end[rows][computed])
    none = np.empty(0, np.int64)
    return union(np.concatenate([none, *starts]), np.concatenate([none, *ends]))


def exposed_copies(line: Timeline, lane: int, window: tuple[int, int]) -> Intervals | None:
    """The parts of the lane's host to device copies that no compute of its device covered, as far as they touch the
    window; null where the lane holds no such copies there."""
    copies = weight_copies(line, rows_between(line, lane, window))
    return None if copies is None else subtract(copies, compute_beside(line, lane, window))


def lane_figures(line: Timeline) -> pd.DataFrame:
    """One row a lane: category, process, device, stream, events, busy_ns, exposed_ns, bytes, gb_s (bytes / busy_ns).

    Null where the rows do not say, and exposed_ns where the lane holds no host to device copies.
    """
    n_bytes = pc.fill_null(line.table["bytes"], ABSENT).to_numpy()
    return pd.DataFrame([_lane_row(line, n_bytes, number) for number in range(len(line.lanes))])


def _lane_row(line: Timeline, n_bytes: Int64, number: int) -> dict[str, object]:
    rows, exposed = line.rows(number), line.weights_and_compute[number]
    sizes, busy_ns = n_bytes[line.order[rows]], line.busy[number].total
    moved = int(sizes.sum()) if len(sizes) and bool((sizes >= 0).all()) else None
    return {
        **line.lanes[number]._asdict(),
        "events": rows.stop - rows.start,
        "busy_ns": busy_ns,
        "exposed_ns": None if exposed is None else exposed_length(*exposed),
        "bytes": moved,
        "gb_s": moved / busy_ns if moved is not None and busy_ns else None,
    }


def exposed_length(copies: Intervals, compute: Intervals) -> int:
    """Total length of `copies` outside `compute`: |copies or compute| - |compute|."""
    return either(copies, compute).total - compute.total


def either(a: Intervals, b: Intervals) -> Intervals:
    """The points in any of the two."""
    # The stable sort merges two sorted runs in one go. Sorted apart, the n-th end still is not before the n-th start.
    starts, ends = (np.sort(np.concatenate([a[edge], b[edge]]), kind="stable") for edge in (0, 1))
    return union(starts, ends)


def _possible(table: pa.Table) -> pa.Table:
    """Without the rows that `Events` leaves out, so that its arrays and this table keep step."""
    start, end = table["t_start"], table["t_end"]
    possible = pc.and_(
        pc.and_(pc.greater_equal(start, -MAX_ABS_NS), pc.less_equal(end, MAX_ABS_NS)), pc.less_equal(start, end)
    )
    return table if pc.all(pc.fill_null(possible, False)).as_py() else table.filter(possible)


def _lanes(events: Events, kind: pa.ChunkedArray, *, by_stream: bool) -> tuple[tuple[Lane, ...], Int64]:
    codes, names = labels(kind)
    known = [CATEGORIES.index(_CATEGORY_OF_KIND.get(name, "api")) for name in names]
    category = np.array([*known, CATEGORIES.index("api")], np.int8)[codes]
    on_host = np.array([name in _HOST_CATEGORIES for name in CATEGORIES])[category]
    columns = {
        "process": events.process,
        "device": np.where(on_host, ABSENT, events.device),
        "category": category,
    }
    on_stream = np.array([name in _STREAM_CATEGORIES for name in CATEGORIES])[category]
    stream = np.where(on_stream, events.stream, np.int32(ABSENT)) if by_stream else _kernels_apart(events)
    groups = group_by(columns | {"stream": _busiest(stream, events, columns) if by_stream else stream})
    keys = (groups.keys[name].tolist() for name in ("process", "device", "category", "stream"))
    lanes = [
        Lane(CATEGORIES[c], _known(p), _known(d), events.stream_names[s] if s >= 0 else None)
        for p, d, c, s in zip(*keys, strict=True)
    ]
    # Host rows say no device, which sorts first; a reader looks for the devices first.
    places = sorted(range(len(lanes)), key=lambda i: (groups.keys["process"][i], lanes[i].device is None, i))
    rank = np.empty(len(lanes), np.int64)
    rank[places] = np.arange(len(lanes))
    return tuple(lanes[i] for i in places), rank[groups.of_row]


def _kernels_apart(events: Events) -> npt.NDArray[np.int32]:
    """The stream of kernels that ran inside steps, whose rows they would cover; ABSENT for all else."""
    is_kernel = np.array([name == KERNEL_STREAM for name in events.stream_names] + [False], np.bool_)[events.stream]
    return np.where(is_kernel, events.stream, np.int32(ABSENT))


def _busiest(
    stream: npt.NDArray[np.int32], events: Events, columns: dict[str, npt.NDArray[np.signedinteger]]
) -> npt.NDArray[np.signedinteger]:
    """Stream codes with all but the busiest MAX_STREAMS - 1 of an overfull category replaced by ABSENT."""
    lanes = group_by(columns | {"stream": stream})
    busy = lanes.sum(events.end - events.start)
    parents = group_by({name: lanes.keys[name] for name in columns})
    by_busy = np.lexsort((-busy, parents.of_row))
    rank = np.empty(len(lanes), np.int64)
    rank[by_busy] = np.arange(len(lanes)) - np.searchsorted(parents.of_row[by_busy], parents.of_row[by_busy])
    n_streams = parents.count()[parents.of_row]
    merged = (rank >= MAX_STREAMS - 1) & (n_streams > MAX_STREAMS)
    return np.where(merged | (n_streams == 1), ABSENT, lanes.keys["stream"])[lanes.of_row]


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


def _known(value: int) -> int | None:
    return None if value == ABSENT else value
