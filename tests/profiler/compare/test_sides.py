"""What two sides share, and one sentence where that is nothing."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from executor.errors import HprofError
from profiler.compare import compare_captures
from profiler.manifest import ManifestArm
from profiler.storage.writer import PassKey, new_capture
from tests.profiler.makers import dense_off_on, imported_without_passes, interrupted


def test_nothing_in_common_is_one_clear_error(tmp_path: Path) -> None:
    dense_off_on(tmp_path / "a", 1)
    writer = new_capture(tmp_path / "b", source="llama-bench", arms=[ManifestArm("hot")])
    writer.add_pass_row(0, PassKey("hot", 512, 0, 512, 0, 0, 0, 0), prefill_ns=1, t_start=0, t_end=1)
    writer.finish()
    b = str(tmp_path / "b")
    with pytest.raises(HprofError) as refused:
        compare_captures(str(tmp_path / "a"), b)
    at, said = str(tmp_path / "a"), str(refused.value)
    assert said.startswith(f"{at} and {b} share no cell and arm: A has ub=4,p=8,n=2 of off and on; B has ")
    assert (
        f"; run the same in both, or see one beside the other, such as hprof compare '{at}#off,ub=4,p=8,n=2' " in said
    )
    a_part, b_part = shlex.split(said.rstrip("."))[-2:]
    assert compare_captures(a_part, b_part).changes


def test_many_cells_without_one_in_common_are_told_in_one_sentence(tmp_path: Path) -> None:
    names = []
    for name, n_prompt in (("a", 100), ("b", 200)):
        writer = new_capture(tmp_path / name, source="llama-bench", arms=[ManifestArm("off"), ManifestArm("on")])
        for order, (size, arm) in enumerate((size, arm) for size in range(16, 176, 16) for arm in ("off", "on")):
            writer.add_pass_row(order, PassKey(arm, size, 0, n_prompt, 0, 0, order, 0), prefill_ns=1000)
        writer.finish()
        names.append(str(tmp_path / name))
    with pytest.raises(HprofError) as refused:
        compare_captures(*names)
    said = str(refused.value)
    cells = "ub=16,p={0}, ub=32,p={0}, ub=48,p={0}, ub=64,p={0} and 6 more of off and on"
    assert f"A has {cells.format(100)}; B has {cells.format(200)}; run the same in both" in said
    assert len(said) < 500 + 4 * len(names[0])


def test_a_side_without_passes_is_told_how_to_get_one(tmp_path: Path) -> None:
    dense_off_on(tmp_path / "a", 1)
    imported_without_passes(tmp_path / "b")
    sides = [str(tmp_path / name) for name in "ab"]
    for a, b in (sides, sides[::-1]):
        with pytest.raises(HprofError, match=r"/b has no measured pass.*--arm NAME=FILE"):
            compare_captures(a, b)


def test_what_only_one_side_has_is_said(tmp_path: Path) -> None:
    dense_off_on(tmp_path / "a", 2)
    result = compare_captures(str(tmp_path / "a"), f"{tmp_path / 'a'}#on")
    assert [w for w in result.warnings if w.startswith("Only A")] == ["Only A has -p 8 -n 2 -ub 4 -d 0 · off."]


def test_an_interrupted_capture_says_so(tmp_path: Path) -> None:
    interrupted(tmp_path / "a")
    warnings = compare_captures(str(tmp_path / "a"), str(tmp_path / "a")).warnings
    assert any(text.startswith("A: The capture") for text in warnings)
