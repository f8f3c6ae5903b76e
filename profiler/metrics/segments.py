"""Busy stretches of groups: unions that are made once and then united again for coarser groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from profiler.arithmetic.intervals import Int64, Intervals, Line, union

_FEW_GROUPS: Final = 16  # looked through one by one sooner than laid end to end and sorted


class Segments(NamedTuple):
    """Disjoint busy stretches of groups, in ns: those of group g are rows first[g] to first[g + 1] - 1, in order."""

    first: Int64
    starts: Int64
    ends: Int64

    @property
    def lengths(self) -> Int64:
        """In ns."""
        return self.ends - self.starts

    def of_groups(self, low: int, high: int) -> Segments:
        """Only the segments of groups low to high - 1; the others stay, without any."""
        start, end = self.first[low], self.first[high]
        return Segments(np.clip(self.first, start, end) - start, self.starts[start:end], self.ends[start:end])

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


def segments_in(groups: Int64, starts: Int64, ends: Int64, n_groups: int) -> Segments:
    """The union inside each of `n_groups` groups."""
    if n_groups <= _FEW_GROUPS:
        chosen = [slice(None)] if n_groups == 1 else [np.flatnonzero(groups == group) for group in range(n_groups)]
        # Rows of one group mostly come in the order of their starts, which those of all groups together do not.
        return _end_to_end([union(starts[rows], ends[rows]) for rows in chosen])
    line = Line(groups, starts, ends, n_groups)
    found = line.union(groups, starts, ends)
    first = line.offsets(found.starts)
    owner = np.repeat(np.arange(n_groups), np.diff(first))
    return Segments(first, line.times_of(found.starts, owner), line.times_of(found.ends, owner))


def regrouped(segments: Segments, group_of: Int64, n_groups: int) -> Segments:
    """Segments of fine groups united inside coarser ones: fine group g belongs to `group_of[g]`."""
    return segments_in(segments.spread(group_of), segments.starts, segments.ends, n_groups)


def joined(parts: Sequence[Segments], group_of: Int64, n_groups: int) -> Segments:
    """The union inside each of `n_groups` groups over all parts; group_of: of the parts' groups, one part after the
    other."""
    if n_groups > _FEW_GROUPS:
        owner = np.repeat(group_of, np.concatenate([np.diff(part.first) for part in parts]))
        starts, ends = (np.concatenate([part[edge] for part in parts]) for edge in (1, 2))
        return segments_in(owner, starts, ends, n_groups)
    found: list[list[Segments]] = [[] for _ in range(n_groups)]
    alone = (part.of_groups(group, group + 1) for part in parts for group in range(len(part.first) - 1))
    for group, segments in zip(group_of.tolist(), alone, strict=True):
        found[group].append(segments)
    return _end_to_end([union(*(np.concatenate([one[edge] for one in mine]) for edge in (1, 2))) for mine in found])


def _end_to_end(unions: Sequence[Intervals]) -> Segments:
    first = np.cumsum([0, *(len(one.starts) for one in unions)])
    none = np.empty(0, np.int64)
    return Segments(first, *(np.concatenate([none, *(one[edge] for one in unions)]) for edge in (0, 1)))
