"""Which share of an arm's values lies far off, and what is said to be the cause."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from profiler.capture import Capture
from profiler.manifest import ManifestArm
from profiler.report.build import build_report
from profiler.storage.writer import PassKey, new_capture

STEADY = [100, 101, 99, 100, 102, 98]


def warned(path: Path, source: str, boots: Sequence[Sequence[int]]) -> list[str]:
    """The warnings about outliers of a capture with one arm, a list of prefill times a boot."""
    writer = new_capture(path, source=source, arms=[ManifestArm("a")])
    order = 0
    for boot, times in enumerate(boots):
        for repetition, ns in enumerate(times):
            key = PassKey("a", 64, 0, 64, 0, repetition, order, boot)
            writer.add_pass_row(order, key, prefill_ns=ns * 1000, t_start=0, t_end=ns * 1000)
            order += 1
    writer.finish()
    return [text for text in build_report(Capture.open(path)).warnings if text.startswith("Outliers")]


def test_steady_values_are_no_outliers(tmp_path: Path) -> None:
    assert warned(tmp_path / "c", "hprof", [STEADY]) == []


def test_the_share_is_named_with_its_arm_and_figure(tmp_path: Path) -> None:
    [said] = warned(tmp_path / "c", "hprof", [[*STEADY, 900, 900]])
    assert "prefill of a 25.0 %" in said
    assert "wall of a 25.0 %" in said
    assert said.endswith("if other programs were running, close them and repeat.")


def test_less_than_a_twentieth_moves_no_median_and_is_not_told(tmp_path: Path) -> None:
    assert warned(tmp_path / "c", "hprof", [[*STEADY * 4, 900]]) == []


def test_of_fewer_values_than_a_verdict_needs_deviations_are_chance(tmp_path: Path) -> None:
    assert warned(tmp_path / "c", "hprof", [[100, 101, 99, 102, 900]]) == []


@pytest.mark.parametrize(
    ("source", "boots", "cause"),
    [
        ("llama-bench", [[900, *STEADY]] * 2, "most are the first repetition of a process"),
        ("llama-bench", [[*STEADY, 900]] * 2, "if other programs were running"),
        ("hprof", [[900, *STEADY]] * 2, "if other programs were running"),
    ],
)
def test_slow_first_repetitions_are_known_of_llama_bench_alone(
    tmp_path: Path, source: str, boots: list[list[int]], cause: str
) -> None:
    [said] = warned(tmp_path / "c", source, boots)
    assert cause in said
