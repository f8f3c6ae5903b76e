"""No two slices of a sub-lane overlap, and no more sub-lanes are used than slices overlap at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profiler.export.lanes import sub_lanes

_SLICES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 12)), max_size=40)


def _sorted(slices: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.array(sorted(s for s, _ in slices), np.int64)
    length = np.array([d for _, d in sorted(slices, key=lambda item: item[0])], np.int64)
    return start, start + length


@given(_SLICES)
def test_slices_of_one_sub_lane_never_overlap(slices: list[tuple[int, int]]) -> None:
    start, end = _sorted(slices)
    levels = sub_lanes(start, end)
    for level in set(levels.tolist()):
        mine = levels == level
        assert (start[mine][1:] >= end[mine][:-1]).all()


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 12)), max_size=40))
def test_there_are_as_many_sub_lanes_as_slices_overlap_at_once(slices: list[tuple[int, int]]) -> None:
    start, end = _sorted(slices)
    at_once = max((int(((start <= t) & (end > t)).sum()) for t in start.tolist()), default=0)
    levels = sub_lanes(start, end)
    assert (int(levels.max()) + 1 if len(levels) else 0) <= max(at_once, 1)


def test_slices_apart_stay_in_one_lane() -> None:
    start = np.arange(0, 1000, 10)
    assert not sub_lanes(start, start + 10).any()


def test_a_staircase_of_overlaps_needs_two() -> None:
    start = np.arange(0, 1000, 10)
    assert sub_lanes(start, start + 12).tolist() == [0, 1] * 50
