"""Bounds of a simulated comparison where rates are off, with pencil and paper and against the device itself. A
verdict that could turn is in docs/cookbook.md, which a test runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import hprof
from executor.units import format_factor
from profiler.report.cells import Cell
from profiler.report.sensitivity import RATES_OFF, PrefillParts, factor_bounds, told_sensitivity


def test_what_is_done_at_once_grows_by_no_more_than_the_slower_of_both() -> None:
    copy_bound = PrefillParts(100, copying_ns=40, computing_ns=0, both_ns=60)
    assert copy_bound.bounds_ns(1.1, 1.0) == pytest.approx((104, 110))
    assert copy_bound.bounds_ns(1.1, 1.1) == pytest.approx((110, 110))
    in_line = PrefillParts(100, copying_ns=60, computing_ns=40, both_ns=0)
    assert in_line.bounds_ns(1.1, 1.0) == pytest.approx((106, 106))


def simulated(path: Path, *rates: str) -> Cell:
    """One cell of off and on on a machine of these rates."""
    words = ["--layers", "2", *rates]
    run = hprof.run(
        "llama-3.1-8b", path, device="sim", n_prompt=512, n_gen=0, n_ubatch=256, repetitions=1, options=words
    )
    return run.report().cells[0]


def test_machines_of_other_rates_lie_within_the_bounds(tmp_path: Path) -> None:
    link, gemm, memory = 20.0, 100.0, 900.0
    rates = ["--link-gb-s", f"{link}", "--gemm-tflop-s", f"{gemm}", "--memory-gb-s", f"{memory}"]
    cell = simulated(tmp_path / "c", *rates)
    bounds = factor_bounds(cell, "on")
    assert bounds is not None
    told = list(told_sensitivity([cell], "on", ["on"], ["n_ubatch"]))
    between = " to ".join(map(format_factor, bounds))
    assert told == [f"If these rates are up to 10 % off, on is {between} x as fast at ub=256."]
    for number, (of_link, of_device) in enumerate([(1 - RATES_OFF / 2, 1.0), (1.0, 1 + RATES_OFF / 2)]):
        other = [
            *("--link-gb-s", f"{link * of_link}", "--gemm-tflop-s", f"{gemm * of_device}"),
            *("--memory-gb-s", f"{memory * of_device}"),
        ]
        found = simulated(tmp_path / f"c{number}", *other).against_baseline["on"]["prefill_tokens_per_s"]
        assert found is not None
        assert bounds[0] <= found.ratio <= bounds[1]
