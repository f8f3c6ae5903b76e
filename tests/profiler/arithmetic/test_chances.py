"""Chances of single ratios against scipy's own tests, and of many together by simulation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from profiler.arithmetic.chances import ONE_SIDED, TwoSides, allowed_chance

_RNG = np.random.default_rng(11)
A, B = _RNG.normal(100, 2, 7), _RNG.normal(104, 3, 7)


@pytest.mark.parametrize("bound", [0.9, 1.0, 1.05])
@pytest.mark.parametrize(("above", "alternative"), [(True, "greater"), (False, "less")])
def test_chances_are_those_of_students_test(bound: float, above: bool, alternative: str) -> None:
    pairs, apart = TwoSides(A, B), TwoSides(A, B[:6], are_pairs=False)
    expected = stats.ttest_rel(B, bound * A, alternative=alternative).pvalue
    assert pairs.chance(bound, above=above) == pytest.approx(expected)
    expected = stats.ttest_ind(B[:6], bound * A, equal_var=False, alternative=alternative).pvalue
    assert apart.chance(bound, above=above) == pytest.approx(expected)


@pytest.mark.parametrize("are_pairs", [True, False])
def test_without_scatter_a_bound_is_passed_or_not(are_pairs: bool) -> None:
    same = TwoSides(np.full(6, 0.1), np.full(6, 0.11), are_pairs)
    assert not same.scatter(1.05)
    assert [same.chance(bound, above=True) for bound in (1.05, 1.1, 1.2)] == [0, 1, 1]
    assert [same.chance(bound, above=False) for bound in (1.05, 1.1, 1.2)] == [1, 1, 0]


def test_one_measurement_shows_nothing() -> None:
    one = TwoSides(np.array([1.0]), np.array([9.0]))
    assert (one.chance(1.0, above=True), one.scatter(1.0)) == (1.0, False)


def test_from_zero_a_rise_is_as_sure_as_it_is_steady() -> None:
    zeros = np.zeros(6)
    steady, lucky = np.array([9.0, 9.1, 8.9, 9, 9, 9]), np.array([9.0, 0, 0, 9, 9, 0.1])
    assert TwoSides(zeros, steady, are_pairs=False).chance(1.0, above=True) < 1e-6
    assert TwoSides(zeros, lucky, are_pairs=False).chance(1.0, above=True) > ONE_SIDED


@pytest.mark.parametrize(
    ("chances", "allowed"),
    [
        ([], 1), ([0.02], 1), ([0.5], 1), ([0.02, 0.9], 1 / 2), ([0.02, 0.024], 1), ([0.001, *[1.0] * 35], 1 / 36),
        ([0.02] * 36, 1), ([0.01] * 18 + [1.0] * 18, 1 / 2), ([1.0] * 36, 1 / 36),
    ],
)  # fmt: skip
def test_the_more_there_are_the_surer_each_has_to_be(chances: list[float], allowed: float) -> None:
    assert allowed_chance(chances) == pytest.approx(ONE_SIDED * allowed)


def _heavy(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    return np.exp(0.01 * rng.standard_t(2, size))


def _normal(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    return np.exp(0.02 * rng.standard_normal(size))


def _outliers(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    return np.exp(0.01 * rng.standard_normal(size) + 0.3 * (rng.random(size) < 0.1))


@pytest.mark.parametrize("draw", [_normal, _heavy, _outliers])
@pytest.mark.parametrize("are_pairs", [True, False])
@pytest.mark.parametrize("is_shared", [True, False])
def test_36_equal_comparisons_cry_as_rarely_as_one(
    draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray], are_pairs: bool, is_shared: bool
) -> None:
    """is_shared: what sets a process apart does so in all its cells, as clocks and page placement do."""
    rng, n_runs, n = np.random.default_rng(3), 300, 36
    n_cried = 0
    for _ in range(n_runs):
        a, b = (draw(rng, (n, 6)) * (draw(rng, (1, 6)) if is_shared else 1) for _ in range(2))
        chances = [TwoSides(x, y, are_pairs).chance(1.0, above=True) for x, y in zip(a, b, strict=True)]
        n_cried += min(chances) <= allowed_chance(chances) and any(c <= allowed_chance(chances) for c in chances)
    assert n_cried <= n_runs * (ONE_SIDED + 3 * (ONE_SIDED / n_runs) ** 0.5)
