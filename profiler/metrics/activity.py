"""The events gathered into the groups that every metric is made of, with each group's busy time as a union.

Rows are grouped once, as finely as the metrics to come ask for, and then let go: coarser groupings work on the groups
(thousands) and on their disjoint segments, not on the rows (millions).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from profiler.arithmetic.intervals import Int64
from profiler.metrics.events import Events
from profiler.metrics.groups import Groups, group_by
from profiler.metrics.segments import Segments, joined, regrouped, segments_in
from profiler.metrics.streams import StreamSums, stream_sums
from profiler.metrics.transfers import TransferIndex

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
        self._of_role: dict[tuple[int, ...], Segments] = {}
        self._coarse: dict[tuple[str, ...], Groups] = {}

    def coarse(self, names: Sequence[str]) -> Groups:
        """The fine groups (as rows) grouped by fewer of their keys; kept for the next call."""
        if (key := tuple(names)) not in self._coarse:
            self._coarse[key] = group_by({name: self.keys[name] for name in key})
        return self._coarse[key]

    def of_role(self, *roles: int) -> Segments:
        """Segments of the groups with these roles, which have to be neighbours; kept for the next call."""
        if roles not in self._of_role:
            groups = np.searchsorted(self.keys["role"], (min(roles), max(roles) + 1))
            self._of_role[roles] = self.segments.of_groups(*groups.tolist())
        return self._of_role[roles]

    def busy_ns(self, groups: Groups, *roles: int) -> Int64:
        """Length of the union of these roles inside each of `groups` (from `coarse`)."""
        united = regrouped(self.of_role(*roles), groups.of_row, len(groups))
        return united.sums(united.lengths)


class _Part(NamedTuple):
    keys: dict[str, Int64]
    segments: Segments
    streams: list[StreamSums]


def _grouped(events: Events, names: Sequence[str]) -> _Part:
    fine = group_by({name: getattr(events, name) for name in names})
    return _Part(fine.keys, segments_in(fine.of_row, events.start, events.end, len(fine)), stream_sums(events))
