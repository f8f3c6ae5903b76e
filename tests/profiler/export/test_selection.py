"""Which passes an export takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.errors import HprofError
from profiler.export.selection import chosen_passes
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
