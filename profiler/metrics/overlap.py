"""Hidden, exposed, busy and idle: the one place that computes them, for metrics, findings and timelines alike.

busy copy     union of the explicit host to device copies of a group, on each device
busy compute  union of the group's compute intervals, on each device
hidden        the part of busy copy during which that device computed anything, whoever issued it
exposed       busy copy - hidden
idle          the part of a window in which the device did no work of its own (`schema.DEVICE_WORK`)

A group is a pass, a phase, a ubatch or a layer. Rows belong to the group that they serve, not to the moment when they
ran: a copy made ahead for the next layer counts as that layer's, and the layer that computes meanwhile hides it. With
several devices a group's figure is the sum of the devices' unions.

`DeviceTime` has the definitions. `OverlapIndex` applies them to all groups of a capture at once: rows are grouped as
finely as the metrics to come ask for, and then let go; coarser groupings work on the groups (thousands) and on their
disjoint segments, not on the rows (millions). `metrics.pieces` runs it over the pieces of large captures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from executor.arrays import Flags, Floats, Int64
from profiler.arithmetic.groups import Groups, group_by
from profiler.arithmetic.intervals import (
    Coverage,
    GroupedIntervals,
    Intervals,
    Line,
    either,
    joined,
    regrouped,
    segments_in,
    subtract,
    union,
)
from profiler.metrics.events import Events
from profiler.metrics.transfers import StreamSums, TransferIndex, stream_sums
from profiler.schema import COMPUTE, COPIES, DEVICE_WORK, H2D, IN_COLLECTIVE

LAYER_KEYS: Final = ("role", "pass_id", "phase", "ubatch", "layer", "process", "device")
PHASE_KEYS: Final = ("role", "pass_id", "phase", "process", "device")  # a few groups a pass, which take half the time
PASS_ON_DEVICE: Final = ("pass_id", "process", "device")
DEVICE: Final = ("process", "device")
_OTHER_WORK: Final = tuple(role for role in DEVICE_WORK if role not in (*COPIES, COMPUTE))
_SLICE_ROWS: Final = 1 << 16  # columns of this length, and what is made of them, stay in a level-2 cache


def exposed(copies: Intervals, computing: Intervals) -> Intervals:
    """The parts of a device's copies that its compute does not cover."""
    return subtract(copies, computing)


def exposed_ns(copies: Intervals, computing: Intervals) -> int:
    """Their length: |copies or computing| - |computing|."""
    return either(copies, computing).total - computing.total


class DeviceTime:
    """When a device computed, and when it worked at all: what hides a copy, and what is idle.

    Times are those of one device, or positions on a `Line` that has many devices end to end.
    """

    def __init__(self, computing: Intervals, working: Intervals) -> None:
        self.computing, self.working = Coverage(computing), Coverage(working)

    def hidden_ns(self, starts: Int64, ends: Int64) -> Int64:
        """How much of each copy the device's compute covers."""
        return self.computing.of(starts, ends)

    def hidden_in(self, copies: Intervals, starts: Int64, ends: Int64) -> Int64:
        """How much of the copies is hidden inside each window; copies may run across its edges."""
        before = np.append(0, np.cumsum(self.hidden_ns(*copies)))

        def until(times: Int64) -> Int64:
            index = np.searchsorted(copies.starts, times, side="right")
            last_end = np.append(copies.ends, times[:1])[
                index - 1
            ]  # before the first copy there is nothing to take off
            return before[index] - np.where(index > 0, self.hidden_ns(times, last_end), 0)

        return until(ends) - until(starts) if len(copies.starts) else np.zeros(len(starts), np.int64)

    def idle_ns(self, starts: Int64, ends: Int64) -> Int64:
        """How much of each window the device did nothing in."""
        return ends - starts - self.working.of(starts, ends)

    def gaps(self, starts: Int64, ends: Int64) -> tuple[Int64, Int64, Int64]:
        """The stretches that `idle_ns` adds up: the window of each, its start, and its length in ns."""
        busy = self.working.busy
        low = np.searchsorted(busy.ends, starts, side="right")  # the first busy stretch that reaches into the window
        count = np.searchsorted(busy.starts, ends, side="left") - low + 1
        window = np.repeat(np.arange(len(starts)), count)
        place = np.arange(len(window)) - np.repeat(np.cumsum(count) - count - low, count)
        after = np.append(busy.ends, 0)[place - 1]  # of the first gap of a window: replaced by the window's start
        before = np.append(busy.starts, 0)[np.minimum(place, len(busy.starts))]
        is_first, is_last = (np.r_[True, np.diff(window) > 0], np.r_[np.diff(window) > 0, True])
        first = np.where(is_first[: len(window)], starts[window], after)
        last = np.where(is_last[: len(window)], ends[window], before)
        length = np.maximum(last - first, 0)
        return window[length > 0], first[length > 0], length[length > 0]


class GroupedSlice(NamedTuple):
    """A slice of the rows: fine groups, when each was busy, and what its streams add up to."""

    keys: dict[str, Int64]
    segments: GroupedIntervals
    streams: list[StreamSums]

    @classmethod
    def of(cls, events: Events, names: Sequence[str]) -> GroupedSlice:
        """Of rows that all have a role."""
        fine = group_by({name: getattr(events, name) for name in names})
        return cls(fine.keys, segments_in(fine.of_row, events.start, events.end, len(fine)), stream_sums(events))


class Activity:
    """Fine groups of the rows that count as anything, and the segments in which each was busy.

    `keys` has a column a name that rows were grouped by; the role comes first, so that groups of one role are
    neighbours.
    """

    def __init__(self, parts: Sequence[GroupedSlice], transfers: TransferIndex) -> None:
        fine = group_by({name: np.concatenate([part.keys[name] for part in parts]) for name in parts[0].keys})
        self.keys = fine.keys
        self.roles = frozenset(np.unique(fine.keys["role"]).tolist())
        segments = [part.segments for part in parts]
        self.segments = segments[0] if len(parts) == 1 else joined(segments, fine.of_row, len(fine))
        self.transfers = transfers
        self.streams = [stream for part in parts for stream in part.streams]
        self._of_role: dict[tuple[int, ...], GroupedIntervals] = {}
        self._coarse: dict[tuple[str, ...], Groups] = {}

    @classmethod
    def of(cls, events: Events, names: Sequence[str] = LAYER_KEYS) -> Activity:
        """Of rows, grouped by LAYER_KEYS or PHASE_KEYS."""
        # Few groups are soon joined again, so that rows can be grouped while they are in the processor's cache.
        slices = [events] if len(names) > len(PHASE_KEYS) else events.slices(_SLICE_ROWS)
        grouped = [GroupedSlice.of(one.where(one.role >= 0), names) for one in slices]
        return cls(grouped, TransferIndex.of(events, names))

    @classmethod
    def joined(cls, parts: Sequence[Activity]) -> Activity:
        """One of all rows; no two parts have rows of the same pass."""
        if len(parts) == 1:
            return parts[0]
        slices = [GroupedSlice(part.keys, part.segments, part.streams) for part in parts]
        return cls(slices, TransferIndex.joined([part.transfers for part in parts]))

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
        if not self.roles & set(roles):
            return np.zeros(len(groups), np.int64)
        united = regrouped(self.of_role(*roles), groups.of_row, len(groups))
        return united.sums(united.lengths)


@dataclass(frozen=True, slots=True)
class Overlap:
    """One element a group; `keys` are the columns that it was grouped by. All times in ns."""

    keys: dict[str, Int64]
    busy_copy_ns: Int64
    busy_compute_ns: Int64
    hidden_copy_ns: Int64
    hideable_ns: Int64  # the most that could have been hidden, on each device
    collective_ns: Int64  # union of the collectives that ran beside the compute

    @classmethod
    def of(
        cls, keys: dict[str, Int64], copy_ns: Int64, compute_ns: Int64, hidden_ns: Int64, collective_ns: Int64
    ) -> Overlap:
        """Of groups that each lie on one device.

        hideable: min(busy copy, busy compute). Where other groups' compute hides more than the group computes, as a
        ubatch's copies can be hidden by the ubatch before, that much could be hidden: no efficiency exceeds 1.
        """
        hideable_ns = np.minimum(copy_ns, np.maximum(compute_ns, hidden_ns))
        return cls(keys, copy_ns, compute_ns, hidden_ns, hideable_ns, collective_ns)

    @property
    def exposed_copy_ns(self) -> Int64:
        """Copy time that no compute covered."""
        return self.busy_copy_ns - self.hidden_copy_ns

    @property
    def overlap_efficiency(self) -> Floats:
        """hidden / hideable; NaN where the group copied or computed nothing."""
        some = (self.busy_copy_ns > 0) & (self.busy_compute_ns > 0)
        return ratio(self.hidden_copy_ns, np.where(some, self.hideable_ns, 0))

    @property
    def hidden_ratio(self) -> Floats:
        """hidden / busy copy; NaN where nothing was copied."""
        return ratio(self.hidden_copy_ns, self.busy_copy_ns)

    def where(self, mask: Flags) -> Overlap:
        """Only the groups that the mask keeps."""
        return Overlap({name: values[mask] for name, values in self.keys.items()}, *(v[mask] for v in self._sums))

    def regroup(self, names: Sequence[str]) -> Overlap:
        """These figures added up over groups that agree in fewer of their keys."""
        groups = group_by({name: self.keys[name] for name in names})
        return Overlap(groups.keys, *map(groups.sum, self._sums))

    @property
    def _sums(self) -> tuple[Int64, ...]:
        names = ("busy_copy_ns", "busy_compute_ns", "hidden_copy_ns", "hideable_ns", "collective_ns")
        return tuple(getattr(self, name) for name in names)


def ratio(part: Int64, whole: Int64) -> Floats:
    """part / whole as floats, NaN where whole is zero."""
    quotient: Floats = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return quotient


class PassWindows(NamedTuple):
    """When passes began and ended, ns on the capture's one clock; parallel arrays."""

    pass_id: Int64
    starts: Int64
    ends: Int64


class OverlapIndex:
    """All copies against the compute of their device, measured once; `by` then gives any grouping's figures.

    one_clock: the windows of the passes of a capture whose rows all lie on one clock, as in imports. There a pass's
    figures are those of its window: a copy may be hidden by work that another pass issued, and what runs across a
    border counts on both sides. Without it (None) each pass has a clock of its own, and only its own rows.
    """

    def __init__(self, activity: Activity, one_clock: PassWindows | None = None) -> None:
        self._activity, self._windows = activity, one_clock
        self._context_names = PASS_ON_DEVICE if one_clock is None else DEVICE
        self._contexts = activity.coarse(self._context_names)
        copies, computes, others = (activity.of_role(*roles) for roles in (COPIES, (COMPUTE,), _OTHER_WORK))
        self._line = self._line_of(copies, computes, others)
        copied, computed = self._place(copies), self._place(computes)
        computing = union(*computed)
        working = either(union(*copied), computing)
        if len(others.starts):
            working = either(working, union(*self._place(others)))
        self._time = DeviceTime(computing, working)
        self._fine_copy = copies.sums(copies.lengths)
        self._fine_hidden = copies.sums(self._time.hidden_ns(*copied))
        self._fine_compute = computes.sums(computes.lengths)
        # Sets that do not meet have a union as long as the sum of their lengths: then any grouping is a sum.
        self._computes_apart = computing.total == self._fine_compute.sum()
        directions = activity.coarse((*self._context_names, "role"))
        self._copies_apart = activity.busy_ns(directions, *COPIES).sum() == self._fine_copy.sum()

    def by(self, names: Sequence[str], roles: tuple[int, ...] = (H2D,)) -> Overlap:
        """Figures of the copies with these roles, grouped by columns of the activity's keys.

        With several roles, 'role' must be among the names: directions are never added up.
        """
        if self._windows is not None and "pass_id" in names and set(names) <= set(PASS_ON_DEVICE) and roles == (H2D,):
            return self._of_passes.regroup(names)
        return self._grouped(tuple(dict.fromkeys((*names, *self._context_names))), roles).regroup(names)

    def idle_ns(self, pass_id: Int64, starts: Int64, ends: Int64) -> Floats:
        """Idle ns inside each window [starts[i], ends[i]) of pass `pass_id[i]`, summed over the pass's devices.

        NaN for windows of passes that have no device rows at all.
        """
        window, context = self._devices_of(PassWindows(pass_id, starts, ends))
        first, last = self._on_line(context, starts[window], ends[window])
        # The axis ends with the device's first and last work: before and after it is idle too.
        idle = self._time.idle_ns(first, last) + (ends - starts)[window] - (last - first)
        n_devices = np.bincount(window, minlength=len(pass_id))
        total = np.bincount(window, weights=idle, minlength=len(pass_id))
        return np.where(n_devices > 0, total, np.nan)

    def _line_of(self, *segments: GroupedIntervals) -> Line:
        """Contexts end to end, long enough for these."""
        spans = (one.spans() for one in segments)
        fine, starts, ends = (np.concatenate(columns) for columns in zip(*spans, strict=True))
        return Line(self._contexts.of_row[fine], starts, ends, len(self._contexts))

    def _place(self, segments: GroupedIntervals) -> tuple[Int64, Int64]:
        context = segments.spread(self._contexts.of_row)
        return self._line.place(context, segments.starts), self._line.place(context, segments.ends)

    def _on_line(self, context: Int64, starts: Int64, ends: Int64) -> tuple[Int64, Int64]:
        return self._line.place_clipped(context, starts), self._line.place_clipped(context, ends)

    def _devices_of(self, windows: PassWindows) -> tuple[Int64, Int64]:
        """Every pair (window, context of a device that worked in its pass).

        On one clock, a pass without rows of its own has the devices that worked in its window.
        """
        passes = self._activity.coarse(PASS_ON_DEVICE)
        work = self._activity.of_role(*DEVICE_WORK)
        works = passes.sum(work.sums(work.lengths)) > 0
        context_of = np.empty(len(passes), np.int64)
        context_of[passes.of_row] = self._contexts.of_row
        context_of, pass_of = context_of[works], passes.keys["pass_id"][works]  # in the order of the passes
        low = np.searchsorted(pass_of, windows.pass_id, side="left")
        count = np.searchsorted(pass_of, windows.pass_id, side="right") - low
        window = np.repeat(np.arange(len(count)), count)
        rank = np.arange(len(window)) - np.repeat(np.cumsum(count) - count, count)
        context = context_of[low[window] + rank]
        if self._windows is None:
            return window, context
        others = self._bystanders(windows, np.flatnonzero(count == 0))
        return np.append(window, others[0]), np.append(context, others[1])

    def _bystanders(self, windows: PassWindows, chosen: Int64) -> tuple[Int64, Int64]:
        """Pairs (window, context) of these windows with every device that worked inside."""
        window = np.repeat(chosen, len(self._contexts))
        context = np.tile(np.arange(len(self._contexts)), len(chosen))
        edges = self._on_line(context, windows.starts[window], windows.ends[window])
        worked = self._time.working.of(*edges) > 0
        return window[worked], context[worked]

    @cached_property
    def _of_passes(self) -> Overlap:
        """Figures of every pass on each of its devices: of its window where it tells one, else of its rows."""
        windows = self._windows
        assert windows is not None
        window, context = self._devices_of(windows)
        edges = self._on_line(context, windows.starts[window], windows.ends[window])
        copying = union(*self._place(self._activity.of_role(H2D)))
        collectives = union(*self._place(self._activity.of_role(IN_COLLECTIVE)))
        told = Overlap.of(
            {"pass_id": windows.pass_id[window]} | {name: self._contexts.keys[name][context] for name in DEVICE},
            Coverage(copying).of(*edges),
            self._time.computing.of(*edges),
            self._time.hidden_in(copying, *edges),
            Coverage(collectives).of(*edges),
        )
        by_rows = self._grouped(PASS_ON_DEVICE, (H2D,))
        rest = by_rows.where(~np.isin(by_rows.keys["pass_id"], told.keys["pass_id"]))
        return _end_to_end([told, rest])

    def _grouped(self, names: tuple[str, ...], roles: tuple[int, ...]) -> Overlap:
        """Figures of the rows of each group; every group lies in one context."""
        groups = self._activity.coarse(names)
        copy_ns, hidden_ns = self._copy_sums(groups, roles)
        collective_ns = self._activity.busy_ns(groups, IN_COLLECTIVE)
        return Overlap.of(groups.keys, copy_ns, self._compute_sums(groups), hidden_ns, collective_ns)

    def _copy_sums(self, groups: Groups, roles: tuple[int, ...]) -> tuple[Int64, Int64]:
        if self._copies_apart:
            wanted = np.isin(self._activity.keys["role"], roles)
            return groups.sum(self._fine_copy * wanted), groups.sum(self._fine_hidden * wanted)
        united = regrouped(self._activity.of_role(*roles), groups.of_row, len(groups))
        context_of = np.empty(len(groups), np.int64)
        context_of[groups.of_row] = self._contexts.of_row
        context = united.spread(context_of)
        placed = (self._line.place(context, times) for times in (united.starts, united.ends))
        return united.sums(united.lengths), united.sums(self._time.hidden_ns(*placed))

    def _compute_sums(self, groups: Groups) -> Int64:
        if self._computes_apart:
            return groups.sum(self._fine_compute)
        return self._activity.busy_ns(groups, COMPUTE)


def _end_to_end(parts: Sequence[Overlap]) -> Overlap:
    keys = {name: np.concatenate([part.keys[name] for part in parts]) for name in parts[0].keys}
    return Overlap(keys, *(np.concatenate(values) for values in zip(*(part._sums for part in parts), strict=True)))
