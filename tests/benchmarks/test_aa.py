"""The A/A benchmark counts verdicts and marks a figure that is called different too often."""

from __future__ import annotations

import itertools
import subprocess
import sys

from benchmarks import aa
from profiler.arithmetic.stats import Comparison


def test_too_many_differences_are_marked() -> None:
    verdicts = itertools.cycle(["faster", "inconclusive", "no difference", "slower"])
    run = aa.count(lambda _: {"ttft_ns": Comparison(1.0, None, None, 6, next(verdicts))}, (6, 2), 8)  # type: ignore[arg-type]
    assert list(aa.table((6, 2), run, 8)) == ["| 6 x 2 | ttft_ns | 4 of 8 **too many** | 2 | 2 |"]
    assert "too many" not in next(aa.table((6, 2), run, 50))


def test_the_stand_in_prints_a_row_a_test() -> None:
    script = aa.__file__.replace("aa.py", "scattering_bench.py")
    command = [sys.executable, "-I", "-S", script, "-p", "64", "-n", "16", "-r", "3"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.count(",") for line in lines] == [8, 8]
