"""The A/A of gates goes through captures and `hprof compare`, in as many cells and arms as it says."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import aa_gate


@pytest.mark.parametrize("kind", ["two captures", "two arms"])
def test_a_run_makes_as_many_comparisons_as_asked_and_finds_what_is_slower_everywhere(kind: aa_gate.Kind) -> None:
    rng = np.random.default_rng(1)
    result = aa_gate.run(rng, kind, 6, 6, 2, "all:1.2")
    assert [gate.comparisons for gate in result.gates] == [6]
    assert aa_gate.outcome(result) == (True, True)
    of_one = aa_gate.run(rng, kind, 6, 6, 2, "one:1.5")
    ratios = sorted(change.b / change.a for change in of_one.changes if change.figure == "ttft_ns")
    assert [ratio > 1.3 for ratio in ratios] == [False] * 5 + [True]
