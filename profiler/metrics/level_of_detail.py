"""What a timeline shows where single events are too many: busy shares of equal bins, and windows of bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from profiler.arithmetic.intervals import Int64, covered_length, either
from profiler.metrics.timeline import Timeline

Shares = npt.NDArray[np.float32]

N_BINS: Final = 2000


def bin_edges(extent: tuple[int, int], n_bins: int = N_BINS) -> Int64:
    """`n_bins` + 1 edges in ns that cover the extent; bins are equal to within one nanosecond, and none is empty."""
    first, last = extent
    whole, rest = divmod(max(last - first, n_bins), n_bins)
    number = np.arange(n_bins + 1, dtype=np.int64)
    return first + number * whole + number * rest // n_bins


def busy_shares(line: Timeline, edges: Int64) -> Shares:
    """How much of each bin each lane was busy, 0..1: (lanes, bins)."""
    shares = np.zeros((len(line.lanes), len(edges) - 1), np.float32)
    widths = np.diff(edges)
    for number, busy in enumerate(line.busy):
        shares[number] = covered_length(busy, edges[:-1], edges[1:]) / widths
    return shares


def exposed_shares(line: Timeline, edges: Int64) -> Shares:
    """How much of each bin was exposed copy, 0..1: (lanes, bins); 0 in lanes without host to device copies."""
    shares = np.zeros((len(line.lanes), len(edges) - 1), np.float32)
    widths = np.diff(edges)
    for number, found in enumerate(line.weights_and_compute):
        if found is not None:
            copies, compute = found
            both, alone = (covered_length(busy, edges[:-1], edges[1:]) for busy in (either(copies, compute), compute))
            shares[number] = (both - alone) / widths
    return shares


def bounded_window(line: Timeline, limit: int, wanted: tuple[int, int] | None = None) -> tuple[int, int]:
    """The longest stretch of time, around the middle of `wanted`, in which at most `limit` events start."""
    first, last = line.extent
    if len(line) <= limit:
        return first, last
    starts = np.sort(line.start, kind="stable")
    middle = first if wanted is None else (wanted[0] + wanted[1]) // 2
    at = int(np.searchsorted(starts, middle)) - limit // 2
    at = min(max(at, 0), len(starts) - limit)
    low = first if at == 0 else int(starts[at])
    high = last if at + limit >= len(starts) else int(starts[at + limit])
    return low, max(high, low + 1)


def joint_extent(lines: Sequence[Timeline]) -> tuple[int, int]:
    """First start and last end over all lines that have rows."""
    extents = [line.extent for line in lines if len(line)]
    return (min(e[0] for e in extents), max(e[1] for e in extents)) if extents else (0, 0)
