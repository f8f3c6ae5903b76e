"""How much a device copied and computed, how much of the copying its compute hid, and how long it was idle.

busy copy, busy compute   unions of a group's intervals on each device hidden, exposed           the part of busy
copy that compute of the same pass and device covers, and the rest A group is a pass, phase, ubatch or layer; a
copy made ahead counts for the layer that it serves. Figures of several devices are sums of the devices' unions.

Rows are grouped once, as finely as the metrics to come ask for, and then let go: coarser groupings work on the
groups (thousands) and on their disjoint segments, not on the rows (millions).

busy copy     union of the host-to-device copies of a group, on each device
busy compute  union of the group's compute intervals, on each device
hidden        the part of busy copy during which that device computed anything in the same pass
exposed       busy copy - hidden

A group is a pass, a phase, a ubatch or a layer; rows belong to the group that they serve, not to the moment when
they ran: a copy made ahead for the next layer counts as that layer's, and the layer that computes meanwhile hides
it. With several devices a group's figure is the sum of the devices' unions.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from profiler.arithmetic.groups import Floats, Groups, Mask, group_by
from profiler.arithmetic.intervals import (
    Coverage,
    GroupedIntervals,
    Int64,
    Line,
    either,
    joined,
    regrouped,
    segments_in,
    union,
)
from profiler.metrics.events import COMPUTE, COPIES, H2D, Events
from profiler.metrics.transfers import StreamSums, TransferIndex, Transfers, stream_sums
from profiler.schema import EVENTS

LAYER_KEYS: Final = ("role", "pass_id", "phase", "ubatch", "layer", "process", "device")
PHASE_KEYS: Final = ("role", "pass_id", "phase", "process", "device")  # a few groups a pass, which take half the time
_SLICE_ROWS: Final = 1 << 16  # columns of this length, and what is made of them, stay in a level-2 cache


class Activity:
    """Fine groups of the rows that copy, compute or wait, and the segments in which each was busy.

    names: what they are grouped by, LAYER_KEYS or PHASE_KEYS; the role comes first, so that groups of one role are
    neighbours.
    """

    def __init__(self, events: Events, names: Sequence[str] = LAYER_KEYS) -> None:
        # Few groups are soon joined again, so that rows can be grouped while they are in the processor's cache.
        slices = [events] if len(names) > len(PHASE_KEYS) else events.slices(_SLICE_ROWS)
        parts = [_grouped(one.where(one.role >= 0), names) for one in slices]
        fine = group_by({name: np.concatenate([part.keys[name] for part in parts]) for name in names})
        self.n_fine = len(fine)
        self.keys = fine.keys
        self.roles = frozenset(np.unique(fine.keys["role"]).tolist())
        segments = [part.segments for part in parts]
        self.segments = segments[0] if len(parts) == 1 else joined(segments, fine.of_row, len(fine))
        self.transfers = TransferIndex(events, names)
        self.streams = [stream for part in parts for stream in part.streams]
        self._of_role: dict[tuple[int, ...], GroupedIntervals] = {}
        self._coarse: dict[tuple[str, ...], Groups] = {}

    def coarse(self, names: Sequence[str]) -> Groups:
        """The fine groups (as rows) grouped by fewer of their keys; kept for the next call."""
        if (key := tuple(names)) not in self._coarse:
            self._coarse[key] = group_by({name: self.keys[name] for name in key})
        return self._coarse[key]

    def of_role(self, *roles: int) -> GroupedIntervals:
        """Segments of the groups with these roles, which have to be neighbours; kept for the next call."""
        if roles not in self._of_role:
            groups = np.searchsorted(self.keys["role"], (min(roles), max(roles) + 1))
            self._of_role[roles] = self.segments.of_groups(*groups.tolist())
        return self._of_role[roles]

    def busy_ns(self, groups: Groups, *roles: int) -> Int64:
        """Length of the union of these roles inside each of `groups` (from `coarse`)."""
        united = regrouped(self.of_role(*roles), groups.of_row, len(groups))
        return united.sums(united.lengths)


class _GroupedSlice(NamedTuple):
    keys: dict[str, Int64]
    segments: GroupedIntervals
    streams: list[StreamSums]


def _grouped(events: Events, names: Sequence[str]) -> _GroupedSlice:
    fine = group_by({name: getattr(events, name) for name in names})
    return _GroupedSlice(fine.keys, segments_in(fine.of_row, events.start, events.end, len(fine)), stream_sums(events))


PASS_ON_DEVICE = ("pass_id", "process", "device")


@dataclass(frozen=True, slots=True)
class Overlap:
    """One element a group; `keys` are the columns that it was grouped by. All times in ns."""

    keys: dict[str, Int64]
    busy_copy_ns: Int64
    busy_compute_ns: Int64
    hidden_copy_ns: Int64
    smaller_busy_ns: Int64  # min(busy copy, busy compute), taken on each device

    @property
    def exposed_copy_ns(self) -> Int64:
        """Copy time that no compute covered."""
        return self.busy_copy_ns - self.hidden_copy_ns

    @property
    def overlap_efficiency(self) -> Floats:
        """hidden / min(busy copy, busy compute); NaN where either is zero."""
        return ratio(self.hidden_copy_ns, self.smaller_busy_ns)

    @property
    def hidden_ratio(self) -> Floats:
        """hidden / busy copy; NaN where nothing was copied."""
        return ratio(self.hidden_copy_ns, self.busy_copy_ns)

    def regroup(self, names: Sequence[str]) -> Overlap:
        """These figures added up over groups that agree in fewer of their keys."""
        groups = group_by({name: self.keys[name] for name in names})
        sums = (self.busy_copy_ns, self.busy_compute_ns, self.hidden_copy_ns, self.smaller_busy_ns)
        return Overlap(groups.keys, *map(groups.sum, sums))


def ratio(part: Int64, whole: Int64) -> Floats:
    """part / whole as floats, NaN where whole is zero."""
    quotient: Floats = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return quotient


class OverlapIndex:
    """All copies against the compute of their context, measured once; `by` then gives any grouping's figures.

    context: inside what a compute interval may hide a copy (default: a pass on a device). `line` has the contexts
    laid end to end, and `any_busy` covers the positions on it where a device copied or computed.
    """

    def __init__(self, activity: Activity, context: Sequence[str] = PASS_ON_DEVICE) -> None:
        self._activity, self._context_names = activity, tuple(context)
        copies, computes = activity.of_role(*COPIES), activity.of_role(COMPUTE)
        self.contexts = activity.coarse(context)
        self.line = self._line(copies, computes)
        copied, computed = self._place(copies), self._place(computes)
        self._computing = Coverage(union(*computed))
        self.any_busy = Coverage(either(union(*copied), self._computing.busy))
        self._fine_copy = copies.sums(copies.lengths)
        self._fine_hidden = copies.sums(self._computing.of(*copied))
        self._fine_compute = computes.sums(computes.lengths)
        # Sets that do not meet have a union as long as the sum of their lengths: then any grouping is a sum.
        self._computes_apart = self._computing.busy.total == self._fine_compute.sum()
        directions = activity.coarse((*self._context_names, "role"))
        self._copies_apart = activity.busy_ns(directions, *COPIES).sum() == self._fine_copy.sum()

    def _line(self, *segments: GroupedIntervals) -> Line:
        """Contexts end to end, long enough for these."""
        spans = (one.spans() for one in segments)
        fine, starts, ends = (np.concatenate(columns) for columns in zip(*spans, strict=True))
        return Line(self.contexts.of_row[fine], starts, ends, len(self.contexts))

    def _place(self, segments: GroupedIntervals) -> tuple[Int64, Int64]:
        context = segments.spread(self.contexts.of_row)
        return self.line.place(context, segments.starts), self.line.place(context, segments.ends)

    @cached_property
    def is_device(self) -> Mask:
        """Which contexts copied or computed anything."""
        found: Mask = np.diff(self.line.offsets(self.any_busy.busy.starts)) > 0
        return found

    def by(self, names: Sequence[str], roles: tuple[int, ...] = (H2D,)) -> Overlap:
        """Figures of the copies with these roles, grouped by columns of the activity's keys.

        With several roles, 'role' must be among the names: directions are never added up.
        """
        per_device = self._activity.coarse(tuple(dict.fromkeys((*names, *self._context_names))))
        copy, hidden = self._copy_sums(per_device, roles)
        compute = self._compute_sums(per_device)
        return Overlap(per_device.keys, copy, compute, hidden, np.minimum(copy, compute)).regroup(names)

    def _copy_sums(self, groups: Groups, roles: tuple[int, ...]) -> tuple[Int64, Int64]:
        if self._copies_apart:
            wanted = np.isin(self._activity.keys["role"], roles)
            return groups.sum(self._fine_copy * wanted), groups.sum(self._fine_hidden * wanted)
        united = regrouped(self._activity.of_role(*roles), groups.of_row, len(groups))
        context_of = np.empty(len(groups), np.int64)
        context_of[groups.of_row] = self.contexts.of_row
        return united.sums(united.lengths), united.sums(self._hidden(united, context_of))

    def _compute_sums(self, groups: Groups) -> Int64:
        if self._computes_apart:
            return groups.sum(self._fine_compute)
        return self._activity.busy_ns(groups, COMPUTE)

    def _hidden(self, copies: GroupedIntervals, context_of: Int64) -> Int64:
        context = copies.spread(context_of)
        return self._computing.of(*(self.line.place(context, times) for times in (copies.starts, copies.ends)))


def idle_ns(overlap: OverlapIndex, pass_id: Int64, starts: Int64, ends: Int64) -> Floats:
    """Idle ns inside each window [starts[i], ends[i]) of pass `pass_id[i]`, summed over the pass's devices.

    NaN for windows of passes that have no device rows at all. `overlap` has passes on devices as its contexts.
    """
    window, context = _windows_by_device(overlap.contexts, pass_id)
    window, context = window[overlap.is_device[context]], context[overlap.is_device[context]]
    first, last = (overlap.line.place_clipped(context, edge[window]) for edge in (starts, ends))
    idle = (ends - starts)[window] - overlap.any_busy.of(first, last)
    n_devices = np.bincount(window, minlength=len(pass_id))
    total = np.bincount(window, weights=idle, minlength=len(pass_id))
    return np.where(n_devices > 0, total, np.nan)


def _windows_by_device(contexts: Groups, pass_id: Int64) -> tuple[Int64, Int64]:
    """Every pair (window, context) of the same pass; contexts come in the order of their passes."""
    passes = contexts.keys["pass_id"]
    low = np.searchsorted(passes, pass_id, side="left")
    count = np.searchsorted(passes, pass_id, side="right") - low
    window = np.repeat(np.arange(len(pass_id)), count)
    rank = np.arange(len(window)) - np.repeat(np.cumsum(count) - count, count)
    return window, low[window] + rank


_PIECE_ROWS: Final = 1 << 17  # int64 columns of this length stay in a level-2 cache
_DEVICE_KEYS: Final = ("process", "device", "role")
_MAX_THREADS: Final = 4
_Summed = TypeVar("_Summed", Overlap, Transfers)
Item = TypeVar("Item")
Result = TypeVar("Result")


class _Passes(NamedTuple):
    activity: Activity
    overlap: OverlapIndex  # the copies against the compute of their pass and device


class OverlapByPass:
    """What the events say, ready to be grouped. `tables` hold EVENT_COLUMNS; no pass may be spread over two.

    by_layer: ubatches and layers can be asked for too; without them it takes half the time.
    """

    def __init__(self, tables: Iterable[pa.Table], *, by_layer: bool = True) -> None:
        self.n_rows = 0
        self.n_impossible = 0  # rows left out: no times, an end before its start, times beyond 104 days
        self._pieces: list[_Passes] = []
        self._overlaps: dict[tuple[str, ...], Overlap] = {}
        measured = partial(_piece_of, names=LAYER_KEYS if by_layer else PHASE_KEYS)
        for n_rows, n_impossible, piece in _in_threads(measured, _sized(tables)):
            self.n_rows += n_rows
            self.n_impossible += n_impossible
            self._pieces.append(piece)

    @property
    def streams(self) -> list[StreamSums]:
        """Counts and bytes by stream; a stream has one entry in each piece."""
        return [entry for piece in self._pieces for entry in piece.activity.streams]

    def keys(self, *names: str) -> tuple[Int64, ...]:
        """Columns of the fine groups' keys over all of them."""
        return tuple(np.concatenate([piece.activity.keys[name] for piece in self._pieces]) for name in names)

    def overlap(self, names: Sequence[str]) -> Overlap:
        """Host to device copies against compute, grouped by these names, 'pass_id' among them; kept."""
        if (key := tuple(names)) not in self._overlaps:
            self._overlaps[key] = _joined([piece.overlap.by(key) for piece in self._pieces])
        return self._overlaps[key]

    def transfers(self, names: Sequence[str]) -> Transfers:
        """Bytes moved, grouped by these names, 'pass_id' among them."""
        return _joined([piece.activity.transfers.by(names) for piece in self._pieces])

    def busy(self, names: Sequence[str], role: int) -> tuple[dict[str, Int64], Int64]:
        """Groups that have rows of this role (their keys), and the union of those rows in ns; with 'pass_id'."""
        found = []
        for activity in (piece.activity for piece in self._pieces):
            if role not in activity.roles:
                found.append({name: np.empty(0, np.int64) for name in (*names, "")})
                continue
            groups = activity.coarse(names)
            has_rows = groups.sum(activity.keys["role"] == role) > 0
            columns = {**groups.keys, "": activity.busy_ns(groups, role)}
            found.append({name: values[has_rows] for name, values in columns.items()})
        joined = _joined_columns(found)
        return joined, joined.pop("")

    def idle(self, pass_id: Int64, starts: Int64, ends: Int64) -> Floats:
        """Idle ns inside windows of passes, summed over devices; NaN where a pass has no device rows."""
        idle = np.full(len(pass_id), np.nan)
        for piece in self._pieces:
            found = idle_ns(piece.overlap, pass_id, starts, ends)
            idle = np.where(np.isnan(idle), found, idle)
        return idle

    def device_overlap(self, *, by_pass: bool) -> Overlap:
        """All copies by (process, device, role) against compute of the same pass and device, or of the device."""
        if by_pass:
            parts = [piece.overlap.by(_DEVICE_KEYS, COPIES) for piece in self._pieces]
            return _joined(parts).regroup(_DEVICE_KEYS)
        if len(self._pieces) != 1:
            raise ValueError("overlap across passes needs all events in one table")
        return OverlapIndex(self._pieces[0].activity, _DEVICE_KEYS[:2]).by(_DEVICE_KEYS, COPIES)


def _piece_of(table: pa.Table, names: Sequence[str]) -> tuple[int, int, _Passes]:
    """Rows, impossible ones among them, and the piece; in a thread, beside other pieces."""
    events = Events.from_table(table)
    activity = Activity(events, names)
    return len(events), events.n_impossible, _Passes(activity, OverlapIndex(activity))


def _in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`map` on all cores (numpy lets go of the interpreter), never far ahead of the consumer."""
    n_threads = min(os.cpu_count() or 1, _MAX_THREADS)
    with ThreadPoolExecutor(n_threads) as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > n_threads:
                yield waiting.popleft().result()
        yield from (future.result() for future in waiting)


def _sized(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Small tables joined and large ones cut between passes, to pieces of about _PIECE_ROWS; at least one piece."""
    waiting, n_rows, is_first = [EVENTS.empty_table()], 0, True
    for table in tables:
        for piece in _cut(table):
            waiting.append(piece)
            n_rows += piece.num_rows
            if n_rows >= _PIECE_ROWS:
                yield _one(waiting)
                waiting, n_rows, is_first = [], 0, False
    if n_rows or is_first:
        yield _one(waiting)


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    """Slices of whole passes; the table itself where its passes are not one after the other, or rows have none."""
    pass_id = table["pass_id"]
    numbers = pass_id.to_numpy() if table.num_rows > _PIECE_ROWS and not pass_id.null_count else np.empty(0, np.int32)
    steps = np.diff(numbers)
    if not steps.any() or (steps < 0).any():
        yield table
        return
    borders = np.flatnonzero(steps) + 1
    wanted = np.arange(_PIECE_ROWS, table.num_rows, _PIECE_ROWS)
    cuts = np.unique(borders[np.minimum(np.searchsorted(borders, wanted), len(borders) - 1)])
    for start, end in itertools.pairwise([0, *cuts.tolist(), table.num_rows]):
        yield table.slice(start, end - start)


def _one(tables: list[pa.Table]) -> pa.Table:
    last = tables[-1]
    return pa.concat_tables([table.select(last.column_names) for table in tables])


def _joined(parts: Sequence[_Summed]) -> _Summed:
    kind = type(parts[0])
    columns: dict[str, Any] = {"keys": _joined_columns([part.keys for part in parts])}
    for name in [field.name for field in fields(kind)][1:]:
        columns[name] = np.concatenate([getattr(part, name) for part in parts])
    return kind(**columns)


def _joined_columns(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
