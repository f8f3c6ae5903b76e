"""Verdicts on known samples, and a simulation of how often the interval holds the true ratio."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.arithmetic import stats
from profiler.arithmetic.stats import (
    Comparison,
    CountUnit,
    Grounds,
    PairDesign,
    compare,
    estimate,
    estimates,
    outliers,
    shared_keys,
)

BASE = np.array([100.0, 101, 99, 100, 102, 98, 100, 101])


def judged(arm: np.ndarray, **options: object) -> Comparison:
    found = compare(BASE, arm, **({"better": "lower"} | options))  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("factor", "better", "verdict"),
    [
        (0.9, "lower", "faster"),
        (1.1, "lower", "slower"),
        (1.1, "higher", "faster"),
        (0.9, "higher", "slower"),
        (1.0, "lower", "no difference"),
        (1.002, "lower", "no difference"),
    ],
)
def test_verdicts(factor: float, better: str, verdict: str) -> None:
    found = judged(BASE * factor, better=better)
    assert (found.verdict, found.reason) == (verdict, None)
    assert found.ratio == pytest.approx(factor)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.ratio <= found.high


def test_a_significant_change_inside_the_noise_is_no_change() -> None:
    assert judged(BASE * 0.97, noise=0.05).verdict == "no difference"
    assert judged(BASE * 0.97, noise=0.01).verdict == "faster"


def test_drift_that_hits_both_of_a_pair_cancels() -> None:
    drift = np.linspace(1, 2, 8)
    found = judged(BASE * drift * 0.95)
    together = compare(BASE * drift, BASE * drift * 0.95, better="lower")
    apart = compare(BASE * drift, BASE * drift * 0.95, better="lower", design=PairDesign(are_pairs=False))
    assert found.pairs == 8
    assert together is not None
    assert apart is not None
    assert together.verdict == "faster"
    assert apart.verdict == "inconclusive"


@pytest.mark.parametrize("n_pairs", [1, 2, 5])
def test_too_few_pairs_are_inconclusive_however_clear(n_pairs: int) -> None:
    found = compare(BASE[:n_pairs], BASE[:n_pairs] * 0.5, better="lower")
    assert found is not None
    assert found.verdict == "inconclusive"
    assert found.reason == f"{n_pairs} of the 6 pairs that a verdict needs"


def test_wide_intervals_and_other_work_are_inconclusive() -> None:
    noisy = BASE * np.array([0.5, 1.5, 0.7, 1.3, 0.9, 1.1, 0.6, 1.4])
    assert "too wide" in (judged(noisy).reason or "")
    assert judged(BASE * 0.5, grounds=Grounds(different="other tokens")).reason == "different workload: other tokens"


@pytest.mark.parametrize("factor", [0.9902, 1.0099])
def test_a_narrow_interval_across_the_noise_threshold_is_not_called_wide(factor: float) -> None:
    arm = 100 * factor * np.linspace(0.998, 1.002, 10)
    found = compare(np.full(10, 100.0), arm, better="lower")
    assert found is not None
    assert found.reason == "the difference lies at the noise threshold of 1 %; more repetitions will hardly settle it"
    wide = compare(np.full(10, 100.0), arm, better="lower", noise=0.001 if factor < 1 else 0.012)
    assert wide is not None
    assert wide.reason is None, "beyond the noise, or inside it"


def test_nothing_to_compare_is_null() -> None:
    assert compare(np.empty(0), BASE, better="lower") is None
    assert estimate([]) is None
    assert estimate([float("nan")]) is None


def test_pairs_are_matched_by_key_and_need_both_values() -> None:
    nan = float("nan")
    baseline = {0: 1.0, 1: 2.0, 2: nan, 3: 4.0, 5: 0.0}
    assert shared_keys(baseline, {3: 40.0, 0: 10.0, 2: 30.0, 4: 50.0, 5: 1.0}) == [0, 3]


@pytest.mark.parametrize("beyond", [0, 0.5, 1.5])
def test_no_interval_ends_at_infinity(beyond: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4,000 resamples of ten values 23 have a median of 0, hence no ratio: the upper end lies on the last that has
    one, between it and the first that has none, or beyond."""
    tail = (23 + 1e-3 - beyond) / 4000
    monkeypatch.setattr(stats, "_tail", lambda n: tail)
    found = compare(np.r_[np.zeros(2), np.ones(8)], np.full(10, 1.1), better="lower")
    assert found is not None
    assert found.high is None or np.isfinite(found.high), (found.low, found.high)


def test_medians_have_the_order_statistics_interval() -> None:
    six = estimate([6, 1, 5, 2, 4, 3])
    assert six is not None
    assert (six.median, six.low, six.high, six.n) == (3.5, 1, 6, 6)
    nine = estimate([*range(1, 10), float("nan")])
    assert nine is not None
    assert (nine.low, nine.high, nine.n) == (2, 8, 9), "ranks 2 and 8 cover 96.1 % (binomial)"
    five = estimate(range(5))
    assert five is not None
    assert (five.low, five.high) == (None, None)


@pytest.mark.parametrize("n_passes", [1, 2, 3, 5, 6, 7, 12])
@pytest.mark.parametrize("n_boots", [1, 2, 12])
@pytest.mark.parametrize("unit", ["pairs", "boots"])
def test_rows_are_estimated_together_as_each_alone(n_passes: int, n_boots: int, unit: CountUnit) -> None:
    rng = np.random.default_rng(n_passes)
    rows = np.exp(rng.normal(0, 0.1, (9, n_passes)))
    rows[1], rows[2, 0], rows[3], rows[4, -1], rows[5, -1] = np.nan, np.nan, 3.0, 1e6, np.inf
    boots = np.asarray(np.arange(n_passes) % n_boots, np.float64)
    assert estimates(rows, boots, unit) == [estimate(row, boots, unit) for row in rows]


def test_outliers_are_flagged_and_kept() -> None:
    values = np.array([100.0, 101, 99, 100, 102, 500])
    assert outliers(values).tolist() == [False] * 5 + [True]
    found = estimate(values)
    assert found is not None
    assert (found.n, found.n_outliers, found.high) == (6, 1, 500)
    assert not outliers(np.full(6, 3.0)).any()


def test_the_same_samples_always_give_the_same_interval() -> None:
    assert judged(BASE * 0.9) == judged(BASE * 0.9)


@pytest.mark.parametrize(("n_pairs", "heavy"), [(6, 0.0), (6, 0.1), (12, 0.0)])
def test_the_interval_holds_the_true_ratio_in_95_of_100_runs(n_pairs: int, heavy: float) -> None:
    """Log-normal noise of 1 %, common drift of 2 %, with and without a tenth of heavy outliers."""
    rng = np.random.default_rng(n_pairs)
    n_runs, hits = 200, 0
    for _ in range(n_runs):
        drift = rng.normal(0, 0.02, n_pairs)
        noise = rng.normal(0, 0.01, (2, n_pairs)) + (rng.random((2, n_pairs)) < heavy) * rng.exponential(0.1)
        found = compare(np.exp(drift + noise[0]), 0.97 * np.exp(drift + noise[1]), better="lower")
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.97 <= found.high
    assert hits / n_runs >= 0.92, "200 runs tell 95 % from 92 % or less (three standard errors: 4.6 %)"


@pytest.mark.parametrize(("n_boots", "n_pairs"), [(2, 12), (3, 6), (5, 3)])
def test_what_an_arm_has_by_its_process_alone_does_not_pass_for_a_difference(n_boots: int, n_pairs: int) -> None:
    """Equal arms, each 3 % off in every process: resamples of two processes would call 3 of 10 runs different."""
    rng = np.random.default_rng(n_boots)
    boots = np.repeat(np.arange(float(n_boots)), n_pairs)
    n_runs, n_wrong = 200, 0
    for _ in range(n_runs):
        apart = rng.normal(0, 0.03, (2, n_boots)).repeat(n_pairs, axis=1)
        arms = np.exp(apart + rng.normal(0, 0.01, apart.shape))
        found = compare(*arms, better="lower", boots=(boots, boots))
        assert found is not None
        n_wrong += found.verdict in ("faster", "slower")
    assert n_wrong / n_runs <= 0.08, "200 runs tell 5 % from 10 % or more"


def test_three_processes_that_agree_are_a_verdict() -> None:
    boots = np.repeat([0.0, 1.0, 2.0], 2)
    base = np.array([100.0, 101, 110, 111, 90, 91])
    found = compare(base, base * np.array([0.9, 0.9, 0.91, 0.91, 0.89, 0.89]), better="lower", boots=(boots, boots))
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    # Student's t of 3 is 4.303: ln 0.9 and its neighbours scatter by 0.0111
    assert (found.verdict, found.pairs) == ("faster", 6)
    assert (found.low, found.high) == pytest.approx((0.9 * np.exp(-0.0277), 0.9 * np.exp(0.0275)), abs=2e-4)


def test_boots_count_as_their_medians_in_an_estimate() -> None:
    boots = np.repeat(np.arange(6.0), 3)
    found = estimate(np.concatenate([[n, n + 0.1, n + 9] for n in range(6)]), boots, "boots")
    assert found is not None
    assert (found.median, found.low, found.high, found.n) == (2.6, 0.1, 5.1, 18)
    two = estimate(np.arange(24.0), np.repeat([0.0, 1.0], 12), "boots")
    assert two is not None
    assert (two.low, two.high, two.n) == (None, None, 24), "24 repetitions of two processes are two measurements"


def test_what_sets_processes_apart_widens_the_interval() -> None:
    """Six processes of six pairs: the arm is 0 to 5 % slower, each process alike in itself."""
    boots = np.repeat(np.arange(6.0), 6)
    arm = 100 * (1 + boots / 100)
    alone, nested = (compare(np.full(36, 100.0), arm, better="lower", boots=given) for given in (None, (boots, boots)))
    assert alone is not None
    assert nested is not None
    assert alone.ratio == nested.ratio == pytest.approx((1.02 * 1.03) ** 0.5)
    assert (alone.low, nested.low) != (None, None)
    assert nested.high - nested.low > 2 * (alone.high - alone.low)  # type: ignore[operator]


def test_what_sets_processes_apart_widens_an_arms_own_interval() -> None:
    """Repetitions of a process are alike here, so that only the three processes tell how far values scatter."""
    boots = np.repeat(np.arange(5.0), 6)
    values = np.repeat([100.0, 105.0, 110.0, 115.0, 120.0], 6) + np.tile(np.arange(6) / 10, 5)
    alone, apart = estimate(values), estimate(values, boots)
    assert alone is not None
    assert apart is not None
    assert (apart.median, apart.n) == (alone.median, 30)
    assert apart.high - apart.low > 1.5 * (alone.high - alone.low)  # type: ignore[operator]
    assert estimate(values, np.zeros(30)) == alone, "one process"
    assert estimate(values, np.arange(30.0)) == alone, "a process a value"
    assert estimate(values[:5], np.array([0.0, 0, 0, 1, 1])) == estimate(values[:5]), "too few values"
    assert estimate(np.full(12, 7.0), np.repeat([0.0, 1.0], 6)) == estimate(np.full(12, 7.0))


def test_an_interval_of_processes_holds_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    boots, held = np.repeat(np.arange(6.0), 5), {"by process": 0, "by value": 0}
    for _ in range(200):
        values = 100 + np.repeat(rng.normal(0, 3, 6), 5) + rng.normal(0, 1, 30)
        for name, found in (("by process", estimate(values, boots)), ("by value", estimate(values))):
            assert found is not None
            assert found.low is not None
            assert found.high is not None
            held[name] += found.low <= 100 <= found.high
    assert held["by process"] >= 0.93 * 200
    assert held["by value"] < 0.85 * 200


def test_boots_of_other_sizes_weigh_alike() -> None:
    boots = np.repeat(np.arange(6.0), [30, 20, 2, 4, 2, 3])
    found = compare(np.full(61, 100.0), np.where(boots < 2, 100.0, 120.0), better="lower", boots=(boots, boots))
    assert found is not None
    assert found.ratio == 1
    assert found.high == pytest.approx(1.2), "four of six processes say so"


def test_one_process_an_arm_needs_boots_and_same_work_needs_none() -> None:
    one = compare(np.array([1.0]), np.array([2.0]), better="lower", design=PairDesign(unit="boots"))
    assert one is not None
    assert (one.verdict, one.reason) == ("inconclusive", "one process an arm: boots needed")
    same = judged(BASE * 0.5, grounds=Grounds(same="decode ran as off in both"))
    assert same.reason == "same work: decode ran as off in both"
    noisy = BASE * np.array([0.5, 1.5, 0.7, 1.3, 0.9, 1.1, 0.6, 1.4])
    assert judged(noisy, design=PairDesign(unit="boots")).reason == "the interval is too wide: more boots"


_TIMES = st.lists(st.floats(1e3, 1e12), min_size=2, max_size=12)


@given(_TIMES, st.data(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_rate_and_the_time_that_it_is_made_of_have_inverse_ratios(
    times: list[float], data: st.DataObject, are_pairs: bool
) -> None:
    """TTFT and prefill of a prompt in one piece, be their number even or odd, of one process or of several."""
    n = len(times)
    a, b = np.array(times), np.array(data.draw(st.lists(st.floats(1e3, 1e12), min_size=n, max_size=n)))
    boots = np.array(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)), float)
    options = {"design": PairDesign(are_pairs), "boots": (boots, boots)}
    ttft = compare(a, b, better="lower", **options)  # type: ignore[arg-type]
    prefill = compare(512e9 / a, 512e9 / b, better="higher", **options)  # type: ignore[arg-type]
    assert ttft is not None
    assert prefill is not None
    assert ttft.verdict == prefill.verdict
    assert ttft.low is None or ttft.high is None or ttft.low <= ttft.ratio <= ttft.high
    assert [1 / end if end else end for end in (prefill.ratio, prefill.high, prefill.low)] == pytest.approx(
        [ttft.ratio, ttft.low, ttft.high], rel=1e-9
    )


def test_two_passes_have_one_ratio() -> None:
    """Medians taken apart would give 0.84 and 0.82."""
    a, b = np.array([1.0, 2.0]), np.array([1.0, 1.5])
    ttft, prefill = compare(a, b, better="lower"), compare(1 / a, 1 / b, better="higher")
    assert ttft is not None
    assert prefill is not None
    assert ttft.ratio == pytest.approx(0.75**0.5)
    assert prefill.ratio == pytest.approx(1 / 0.75**0.5)


def test_rounding_leaves_the_ratio_in_its_interval() -> None:
    for factor in np.linspace(0.3, 3, 200):
        found = compare(np.full(6, 0.7), np.full(6, 0.7 * factor), better="lower")
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.ratio <= found.high
