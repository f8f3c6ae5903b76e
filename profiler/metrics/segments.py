"""Busy stretches of groups: unions that are made once and then united again for coarser groups."""

from __future__ import annotations

from typing import NamedTuple

from profiler.intervals import Int64, Line
from profiler.metrics.groups import Mask


class Segments(NamedTuple):
    """Disjoint busy stretches of fine groups, in ns; `owner[i]` is the group that segment i belongs to."""

    owner: Int64
    starts: Int64
    ends: Int64

    @property
    def lengths(self) -> Int64:
        """In ns."""
        return self.ends - self.starts

    def where(self, mask: Mask) -> Segments:
        """Only the segments that `mask` keeps."""
        return Segments(self.owner[mask], self.starts[mask], self.ends[mask])


def segments_on(line: Line, groups: Int64, starts: Int64, ends: Int64) -> Segments:
    """The union inside each group, as segments in the order of the groups."""
    found = line.union(groups, starts, ends)
    owner = line.group_of(found.starts)
    return Segments(owner, line.times_of(found.starts, owner), line.times_of(found.ends, owner))


def regrouped(segments: Segments, group_of: Int64, n_groups: int) -> tuple[Line, Segments]:
    """Segments of fine groups united inside coarser ones: fine group g belongs to `group_of[g]`."""
    groups = group_of[segments.owner]
    line = Line(groups, segments.starts, segments.ends, n_groups)
    return line, segments_on(line, groups, segments.starts, segments.ends)
