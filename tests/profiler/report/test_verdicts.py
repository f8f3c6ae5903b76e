"""How comparisons are told: words that mislead neither way, and the command that would settle it."""

from __future__ import annotations

import numpy as np
import pytest

from executor.units import format_factor
from profiler.arithmetic.stats import Comparison, Grounds, PairDesign, compare
from profiler.report.verdicts import (
    as_fast,
    command_for_verdict,
    factor_range,
    missing_line,
    told_as_fast,
    verdict_word,
)

FEW = Comparison(0.1, None, None, 1, "inconclusive", "one process an arm: boots needed", "boots")
PAIRS = Comparison(0.1, 0.09, 0.11, 3, "inconclusive", "3 of the 6 pairs that a verdict needs")
SAME = Comparison(1.2, 1.1, 1.3, 2, "inconclusive", "same work: decode ran as off in both")
WIDE = Comparison(1.2, 0.8, 1.6, 8, "inconclusive", "the interval is too wide: repeat more often")
FASTER = Comparison(0.5, 0.4, 0.6, 8, "faster")


def test_times_and_rates_are_told_as_how_many_times_as_fast() -> None:
    assert as_fast(0.5, "ttft_ns") == 2
    assert as_fast(0.5, "decode_tokens_per_s") == 0.5
    assert told_as_fast(PAIRS, "ttft_ns") == "10.0 x as fast"
    assert factor_range([1.2, 3.456]) == "1.20 to 3.46 x as fast"
    assert factor_range([1.201, 1.202]) == "1.20 x as fast"


@pytest.mark.parametrize(
    ("factor", "told"),
    [(0.987, "0.987"), (1.0, "1.000"), (1.46, "1.46"), (10.74, "10.7"), (9.996, "10.0"), (1234, "1,234")],
)
def test_factors_have_the_digits_that_they_need(factor: float, told: str) -> None:
    assert format_factor(factor) == told


@pytest.mark.parametrize(
    ("found", "word"),
    [(FEW, "1 of 6 boots"), (PAIRS, "3 of 6 pairs"), (SAME, "same work"), (WIDE, "unclear"), (FASTER, "faster")],
)
def test_a_word_says_why_no_verdict_is_given(found: Comparison, word: str) -> None:
    assert verdict_word(found) == word


def test_what_is_missing() -> None:
    assert missing_line([WIDE, SAME, FASTER]) is None
    assert missing_line([PAIRS]) == "3 of the 6 repetitions that it needs"
    assert missing_line([FASTER, FEW]) == "1 of the 6 processes an arm that it needs"


def test_the_command_that_gives_a_verdict() -> None:
    run = ["hprof", "run", "-m", "a b.gguf", "-r", "3", "-o", "c", "--force", "--repetitions=2"]
    assert command_for_verdict(run, [FASTER, PAIRS]) == "hprof run -m 'a b.gguf' -r 6"
    assert command_for_verdict(run, [FEW]) == "hprof run -m 'a b.gguf' -r 3 --repetitions=2 --boots 6"
    assert command_for_verdict(run, [WIDE]) is None
    assert command_for_verdict(["hprof", "import", "x"], [PAIRS]) is None


def test_comparisons_say_what_they_count() -> None:
    values = np.array([1.0, 1.1, 1.2])
    pairs = compare(values, values * 2, better="lower", design=PairDesign(unit="pairs"))
    assert compare(values, values * 2, better="lower") == pairs
    few = compare(values, values * 2, better="lower", design=PairDesign(unit="boots"))
    assert few is not None
    assert (few.unit, few.n_missing) == ("boots", 3)
    same = compare(values, values, better="lower", grounds=Grounds(same="all"))
    assert same is not None
    assert (same.is_same_work, same.is_other_work, same.n_missing) == (True, False, 0)
