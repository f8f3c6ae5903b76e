"""The events gathered into the groups that every metric is made of, with each group's busy time as a union.

Rows are grouped once, as finely as any metric asks for, and then let go: coarser groupings work on the groups
(thousands) and on their disjoint segments, not on the rows (millions).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np

from profiler.intervals import Int64, Line
from profiler.metrics.events import Events
from profiler.metrics.groups import Groups, group_by, sum_by
from profiler.metrics.overlap import OverlapIndex
from profiler.metrics.segments import Segments, regrouped, segments_on
from profiler.metrics.streams import stream_sums
from profiler.metrics.transfers import TransferIndex

KEYS: Final = ("role", "pass_id", "phase", "ubatch", "layer", "process", "device")


class Activity:
    """Fine groups (KEYS) of the rows that copy, compute or wait, and the segments in which each was busy."""

    def __init__(self, events: Events) -> None:
        events = events if (events.role >= 0).all() else events.where(events.role >= 0)
        fine = group_by({name: getattr(events, name) for name in KEYS})
        line = Line(fine.of_row, events.start, events.end, len(fine))
        self.n_fine = len(fine)
        self.keys = fine.keys
        self.roles = frozenset(np.unique(fine.keys["role"]).tolist())
        self.segments = segments_on(line, fine.of_row, events.start, events.end)
        self.transfers = TransferIndex(events, fine)
        self.streams = stream_sums(events)
        self._of_role: dict[tuple[int, ...], Segments] = {}
        self._coarse: dict[tuple[str, ...], Groups] = {}

    @cached_property
    def overlap(self) -> OverlapIndex:
        """The copies against the compute of their pass and device; made on first use."""
        return OverlapIndex(self)

    def coarse(self, names: Sequence[str]) -> Groups:
        """The fine groups (as rows) grouped by fewer of KEYS; kept for the next call."""
        if (key := tuple(names)) not in self._coarse:
            self._coarse[key] = group_by({name: self.keys[name] for name in key})
        return self._coarse[key]

    def of_role(self, *roles: int) -> Segments:
        """Segments of the groups with these roles; kept for the next call."""
        if roles not in self._of_role:
            wanted = np.isin(self.keys["role"], roles)
            self._of_role[roles] = self.segments.where(wanted[self.segments.owner])
        return self._of_role[roles]

    def busy_ns(self, groups: Groups, *roles: int) -> Int64:
        """Length of the union of these roles inside each of `groups` (from `coarse`)."""
        _, united = regrouped(self.of_role(*roles), groups.of_row, len(groups))
        return sum_by(united.owner, united.lengths, len(groups))
