"""Which passes an export takes. No two slices of a sub-lane overlap, and no more sub-lanes are used than slices
overlap at once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.errors import HprofError
from profiler.export.tracks import chosen_passes, sub_lanes
from tests.profiler.makers import dense_off_on, empty, imported_without_passes, passes_without_events


def test_one_measured_pass_of_median_length_of_each_arm(tmp_path: Path) -> None:
    capture = dense_off_on(tmp_path / "c")
    passes = capture.passes.set_index("pass_id")
    chosen = chosen_passes(capture, None)
    assert chosen is not None
    assert passes.loc[chosen, "arm"].tolist() == ["off", "on"]
    # every repetition is a microsecond slower: of six the third is the lower median
    assert passes.loc[chosen, "repetition"].tolist() == [2, 2]
    assert not passes.loc[chosen, "warmup"].any()


@pytest.mark.parametrize(("text", "expected"), [("3", [3]), ("0,4-6", [0, 4, 5, 6]), ("2-99", list(range(2, 14)))])
def test_named_passes(tmp_path: Path, text: str, expected: list[int]) -> None:
    assert chosen_passes(dense_off_on(tmp_path / "c"), text) == expected


def test_all(tmp_path: Path) -> None:
    assert chosen_passes(dense_off_on(tmp_path / "c"), "all") == list(range(14))


@pytest.mark.parametrize(
    ("text", "said"), [("77", "no pass 77.*14 passes, 0 to 13"), ("one", "no list"), ("", "no list")]
)
def test_other_texts_are_one_clear_error(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(HprofError, match=said):
        chosen_passes(dense_off_on(tmp_path / "c"), text)


def test_a_trace_without_arms_is_taken_whole(tmp_path: Path) -> None:
    assert chosen_passes(imported_without_passes(tmp_path / "c"), None) is None
    assert chosen_passes(empty(tmp_path / "e"), None) is None


def test_imported_arms_are_set_side_by_side(tmp_path: Path) -> None:
    chosen = chosen_passes(passes_without_events(tmp_path / "c"), None)
    assert chosen is not None
    assert len(chosen) == 2


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
