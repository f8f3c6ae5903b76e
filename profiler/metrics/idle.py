"""Time in which a device neither computed nor copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiler.intervals import Int64, Line, covered_length
from profiler.metrics.groups import Floats, Groups
from profiler.metrics.overlap import PASS_ON_DEVICE
from profiler.metrics.roles import COMPUTE, COPIES

if TYPE_CHECKING:
    from profiler.metrics.activity import Activity


class IdleIndex:
    """When each device of each pass did anything; `inside` then measures the rest of any windows."""

    def __init__(self, activity: Activity) -> None:
        segments = activity.of_role(*COPIES, COMPUTE)
        self._contexts = activity.coarse(PASS_ON_DEVICE)
        groups = self._contexts.of_row[segments.owner]
        self._line = Line(groups, segments.starts, segments.ends, len(self._contexts))
        self._busy = self._line.union(groups, segments.starts, segments.ends)
        self._is_device = np.bincount(groups, minlength=len(self._contexts)) > 0

    def inside(self, pass_id: Int64, starts: Int64, ends: Int64) -> Floats:
        """Idle ns inside each window [starts[i], ends[i]) of pass `pass_id[i]`, summed over the pass's devices.

        NaN for windows of passes that have no device rows at all.
        """
        window, context = _windows_by_device(self._contexts, pass_id)
        window, context = window[self._is_device[context]], context[self._is_device[context]]
        first, last = (self._line.place_clipped(context, edge[window]) for edge in (starts, ends))
        idle = (ends - starts)[window] - covered_length(self._busy, first, last)
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
