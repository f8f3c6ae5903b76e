"""Unions, intersections and differences of half-open intervals [start, end), vectorised, in integer nanoseconds.

`Intervals` from `union` are sorted, disjoint and not touching; the other functions expect and return such. Many
groups (a pass on a device, a layer of a ubatch) are treated in one go: `Line` lays them end to end on one axis, and
`GroupedIntervals` holds the union of each group, to be united again for coarser groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from executor.arrays import Flags, Int64
from executor.errors import HprofError

MAX_ABS_NS: Final = 1 << 53  # 104 days; metrics drop rows beyond it, so that no sum here can overflow
_MAX_LINE_NS: Final = 1 << 62


class Intervals(NamedTuple):
    """Sorted, disjoint intervals: int64 arrays of one length."""

    starts: Int64
    ends: Int64

    @property
    def total(self) -> int:
        """Summed length."""
        return int((self.ends - self.starts).sum())


def union(starts: Int64, ends: Int64) -> Intervals:
    """The points covered by any interval; touching ones are merged, empty and negative ones ignored.

    Starts and ends are sorted apart: a gap lies before the (i+1)-th start exactly when the i+1 smallest ends are
    all before it, so no interval needs to keep its own end.
    """
    keep = ends > starts
    if not keep.all():
        starts, ends = starts[keep], ends[keep]
    if len(starts) == 0:
        return Intervals(np.empty(0, np.int64), np.empty(0, np.int64))
    starts, ends = _sorted(starts), _sorted(ends)
    gap = starts[1:] > ends[:-1]
    if gap.all():
        return Intervals(starts, ends)
    return Intervals(starts[np.r_[True, gap]], ends[np.r_[gap, True]])


def either(a: Intervals, b: Intervals) -> Intervals:
    """The points in any of the two."""
    # The stable sort merges two sorted runs in one go. Sorted apart, the n-th end still is not before the n-th start.
    starts, ends = (np.sort(np.concatenate([a[edge], b[edge]]), kind="stable") for edge in (0, 1))
    return union(starts, ends)


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """The points in both. Each piece starts where one starts inside the other; ties are counted once."""
    starts = np.concatenate([a.starts[_inside(b, a.starts, "left")], b.starts[_strictly_inside(a, b.starts)]])
    ends = np.concatenate([a.ends[_inside(b, a.ends, "right")], b.ends[_strictly_inside(a, b.ends)]])
    return Intervals(np.sort(starts), np.sort(ends))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """The points in `a` and not in `b`."""
    if len(a.starts) == 0 or len(b.starts) == 0:
        return a
    first, last = min(a.starts[0], b.starts[0]), max(a.ends[-1], b.ends[-1])
    outside = Intervals(np.r_[first, b.ends], np.r_[b.starts, last])
    some = outside.ends > outside.starts
    return intersect(a, Intervals(outside.starts[some], outside.ends[some]))


def covered_length(busy: Intervals, starts: Int64, ends: Int64) -> Int64:
    """How much of each window [starts[i], ends[i]) is busy; windows may overlap each other. Empty ones give 0."""
    return Coverage(busy).of(starts, ends)


class Coverage:
    """`covered_length` of one `busy`, for windows that are asked about in several goes."""

    def __init__(self, busy: Intervals) -> None:
        self.busy = busy
        self._before = np.zeros(len(busy.starts) + 1, np.int64)
        np.cumsum(busy.ends - busy.starts, out=self._before[1:])

    def of(self, starts: Int64, ends: Int64) -> Int64:
        """How much of each window [starts[i], ends[i]) is busy."""
        if len(self.busy.starts) == 0:
            return np.zeros(len(starts), np.int64)
        return self._until(np.maximum(ends, starts)) - self._until(starts)

    def _until(self, times: Int64) -> Int64:
        index = np.searchsorted(self.busy.starts, times, side="right")
        overshoot = self.busy.ends[np.maximum(index - 1, 0)] - times
        return self._before[index] - np.where(index > 0, np.maximum(overshoot, 0), 0)


def _inside(span: Intervals, points: Int64, edge: str) -> Flags:
    """Whether each point lies in [start, end) (edge 'left') or (start, end] (edge 'right') of some interval."""
    if len(span.starts) == 0:
        return np.zeros(len(points), np.bool_)
    if edge == "left":
        index = np.searchsorted(span.starts, points, side="right")
        within = points < span.ends[np.maximum(index - 1, 0)]
    else:
        index = np.searchsorted(span.starts, points, side="left")
        within = points <= span.ends[np.maximum(index - 1, 0)]
    inside: Flags = (index > 0) & within
    return inside


def _strictly_inside(span: Intervals, points: Int64) -> Flags:
    return _inside(span, points, "left") & _inside(span, points, "right")


def _sorted(values: Int64) -> Int64:
    # Streams are recorded in order, so most inputs already are; the check costs a tenth of the sort.
    return values if bool((values[1:] >= values[:-1]).all()) else np.sort(values)


class Line:
    """Groups of intervals laid end to end on one axis, a gap between groups, so that one union serves them all.

    Built from all rows that will ever be placed on it: `groups` (int64, 0..n_groups-1), `starts`, `ends`.
    """

    def __init__(self, groups: Int64, starts: Int64, ends: Int64, n_groups: int) -> None:
        first = np.full(n_groups, MAX_ABS_NS, np.int64)
        last = np.full(n_groups, -MAX_ABS_NS, np.int64)
        np.minimum.at(first, groups, starts)
        np.maximum.at(last, groups, np.maximum(ends, starts))
        span = np.maximum(last - first, 0) + 2
        if span.sum(dtype=np.float64) > _MAX_LINE_NS:
            raise HprofError("the times of this trace span more than 146 years: it is damaged, capture again.")
        self._origins = np.cumsum(span) - span
        self._first, self._last = first, np.maximum(first, last)
        self.lengths = self._last - first  # of each group, from its first start to its last end
        self._shift = self._origins - first
        self.n_groups = n_groups

    def place(self, groups: Int64, times: Int64) -> Int64:
        """Positions on the line of times that lie inside their groups' spans."""
        placed: Int64 = times + self._shift[groups]
        return placed

    def place_clipped(self, groups: Int64, times: Int64) -> Int64:
        """As `place`, for any times: those outside a group's span go to its edge, where nothing is."""
        return self.place(groups, np.clip(times, self._first[groups], self._last[groups]))

    def spans(self) -> tuple[Int64, Int64]:
        """Where the stretch of each group starts and ends."""
        return self._origins, self._origins + self.lengths

    def union(self, groups: Int64, starts: Int64, ends: Int64) -> Intervals:
        """The union of every group, as positions on the line."""
        return union(self.place(groups, starts), self.place(groups, ends))

    def offsets(self, positions: Int64) -> Int64:
        """Those of group g among these sorted positions are offsets[g] to offsets[g + 1] - 1."""
        found: Int64 = np.searchsorted(positions, np.append(self._origins, _MAX_LINE_NS))
        return found

    def group_of(self, positions: Int64) -> Int64:
        """The group that each of these sorted positions belongs to."""
        return np.repeat(np.arange(self.n_groups), np.diff(self.offsets(positions)))

    def times_of(self, positions: Int64, groups: Int64) -> Int64:
        """Positions back as times in their groups."""
        times: Int64 = positions - self._shift[groups]
        return times


_FEW_GROUPS: Final = 16  # looked through one by one sooner than laid end to end and sorted


class GroupedIntervals(NamedTuple):
    """Disjoint busy stretches of groups, in ns: those of group g are rows first[g] to first[g + 1] - 1, in order."""

    first: Int64
    starts: Int64
    ends: Int64

    @property
    def lengths(self) -> Int64:
        """In ns."""
        return self.ends - self.starts

    def of_groups(self, low: int, high: int) -> GroupedIntervals:
        """Only the segments of groups low to high - 1; the others stay, without any."""
        start, end = self.first[low], self.first[high]
        return GroupedIntervals(np.clip(self.first, start, end) - start, self.starts[start:end], self.ends[start:end])

    def spread(self, values: Int64) -> Int64:
        """A value of each group, for each of its segments."""
        return np.repeat(values, np.diff(self.first))

    def sums(self, values: Int64) -> Int64:
        """Sum of `values` (one a segment) in each group."""
        found = np.zeros(len(self.first) - 1, np.int64)
        some = np.flatnonzero(np.diff(self.first))
        if len(some):
            found[some] = np.add.reduceat(values, self.first[some])
        return found

    def spans(self) -> tuple[Int64, Int64, Int64]:
        """The groups that have any segments, when their first starts and when their last ends."""
        some = np.flatnonzero(np.diff(self.first))
        return some, self.starts[self.first[some]], self.ends[self.first[some + 1] - 1]


def segments_in(groups: Int64, starts: Int64, ends: Int64, n_groups: int) -> GroupedIntervals:
    """The union inside each of `n_groups` groups."""
    if n_groups <= _FEW_GROUPS:
        chosen = [slice(None)] if n_groups == 1 else [np.flatnonzero(groups == group) for group in range(n_groups)]
        # Rows of one group mostly come in the order of their starts, which those of all groups together do not.
        return _end_to_end([union(starts[rows], ends[rows]) for rows in chosen])
    groups, starts, ends = _group_after_group(groups, starts, ends, n_groups)
    line = Line(groups, starts, ends, n_groups)
    found = line.union(groups, starts, ends)
    first = line.offsets(found.starts)
    owner = np.repeat(np.arange(n_groups), np.diff(first))
    return GroupedIntervals(first, line.times_of(found.starts, owner), line.times_of(found.ends, owner))


def _group_after_group(groups: Int64, starts: Int64, ends: Int64, n_groups: int) -> tuple[Int64, Int64, Int64]:
    """The same rows, those of a group together and in their order: which mostly is that of their times, so that no
    other sort is due. numpy counts numbers of 16 bits, in a quarter of the time that it takes to sort times.
    """
    if n_groups > np.iinfo(np.uint16).max or bool((groups[1:] >= groups[:-1]).all()):
        return groups, starts, ends
    order = np.argsort(groups.astype(np.uint16), kind="stable")
    return groups[order], starts[order], ends[order]


def regrouped(segments: GroupedIntervals, group_of: Int64, n_groups: int) -> GroupedIntervals:
    """Segments of fine groups united inside coarser ones: fine group g belongs to `group_of[g]`."""
    return segments_in(segments.spread(group_of), segments.starts, segments.ends, n_groups)


def joined(parts: Sequence[GroupedIntervals], group_of: Int64, n_groups: int) -> GroupedIntervals:
    """The union inside each of `n_groups` groups over all parts; group_of: of the parts' groups, one part after the
    other."""
    if n_groups > _FEW_GROUPS:
        owner = np.repeat(group_of, np.concatenate([np.diff(part.first) for part in parts]))
        starts, ends = (np.concatenate([part[edge] for part in parts]) for edge in (1, 2))
        return segments_in(owner, starts, ends, n_groups)
    found: list[list[GroupedIntervals]] = [[] for _ in range(n_groups)]
    alone = (part.of_groups(group, group + 1) for part in parts for group in range(len(part.first) - 1))
    for group, segments in zip(group_of.tolist(), alone, strict=True):
        found[group].append(segments)
    return _end_to_end([union(*(np.concatenate([one[edge] for one in mine]) for edge in (1, 2))) for mine in found])


def _end_to_end(unions: Sequence[Intervals]) -> GroupedIntervals:
    first = np.cumsum([0, *(len(one.starts) for one in unions)])
    none = np.empty(0, np.int64)
    return GroupedIntervals(first, *(np.concatenate([none, *(one[edge] for one in unions)]) for edge in (0, 1)))
