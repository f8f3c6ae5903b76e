"""Time in which a device neither computed nor copied."""

from __future__ import annotations

import numpy as np

from profiler.arithmetic.intervals import Int64
from profiler.metrics.groups import Floats, Groups
from profiler.metrics.overlap import OverlapIndex


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
