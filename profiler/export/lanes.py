"""Sub-lanes: slices of one lane that overlap go side by side, so that a viewer drops none of them."""

from __future__ import annotations

import heapq

import numpy as np

from profiler.arithmetic.intervals import Int64


def sub_lanes(start: Int64, end: Int64) -> Int64:
    """For each slice of one lane, sorted by start, the number of its sub-lane: the lowest that is free then.

    Only stretches in which slices overlap are walked one by one; elsewhere every slice is in sub-lane 0.
    """
    levels = np.zeros(len(start), np.int64)
    if len(start) < 2:
        return levels
    latest = np.maximum.accumulate(end)
    opens = np.flatnonzero(np.concatenate([[True], start[1:] >= latest[:-1]]))
    sizes = np.diff(np.append(opens, len(start)))
    for first, size in zip(opens[sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True):
        levels[first : first + size] = _first_fit(
            start[first : first + size].tolist(), end[first : first + size].tolist()
        )
    return levels


def _first_fit(start: list[int], end: list[int]) -> list[int]:
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # (end, level)
    n_levels = 0
    levels = []
    for begins, ends in zip(start, end, strict=True):
        while busy and busy[0][0] <= begins:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            level = heapq.heappop(free)
        else:
            level, n_levels = n_levels, n_levels + 1
        heapq.heappush(busy, (ends, level))
        levels.append(level)
    return levels
