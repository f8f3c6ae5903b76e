"""What the first screen says that an arm's time goes to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from profiler.arithmetic.stats import estimate
from profiler.report.arm_reasons import told_work
from profiler.report.build import build_report
from profiler.report.cells import Cell
from tests.profiler import makers


def _with(cell: Cell, arm: str, **figures: float) -> Cell:
    of_pass = {**cell.arms[arm].figures["pass"], **{name: estimate([value]) for name, value in figures.items()}}
    changed = replace(cell.arms[arm], figures={**cell.arms[arm].figures, "pass": of_pass})
    return replace(cell, arms={**cell.arms, arm: changed})


@pytest.mark.parametrize(
    ("own_ns", "said"),
    [
        (0, "of compute, in place of 1.00 ms of the CPU with off"),
        (20e3, "of compute, in place of 1.00 ms of the CPU with off"),
        (800e3, "of compute, with 800 us of the CPU in place of 1.00 ms with off"),
    ],
    ids=["the device computes", "but for a last row", "both compute"],
)
def test_what_the_cpu_still_does_is_told_beside_what_it_does_with_the_baseline(
    own_ns: float, said: str, tmp_path: Path
) -> None:
    (cell,) = build_report(makers.dense_off_on(tmp_path / "c")).cells
    cell = _with(cell, "off", bytes_h2d=8, host_compute_ns=1e6)  # activations alone
    assert (told_work(_with(cell, "on", host_compute_ns=own_ns), "on") or "").endswith(said)
