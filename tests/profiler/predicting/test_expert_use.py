"""Expected use of experts against draws of the routing that leads to it."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from executor.routing.routers import RandomRouting
from executor.routing.spec import routing_from_spec
from profiler.predicting.expert_use import ExpectedUse, expected_runs, runs_of_part, use_of_observed, use_of_routing

LAYERS, EXPERTS, USED = 6, 64, 4


def routing(spec: str = "lognormal") -> RandomRouting:
    found = routing_from_spec(spec, layers=range(LAYERS), n_experts=EXPERTS, n_used=USED, seed=3)
    assert isinstance(found, RandomRouting)
    return found


def drawn_flags(of: RandomRouting, n_tokens: int) -> np.ndarray:
    """(draws, experts): the experts that ubatches of layer 0 and others used."""
    flags = np.zeros((40 * LAYERS, EXPERTS), np.bool_)
    for row in range(len(flags)):
        flags[row, of.ids(row % LAYERS, 10_000 * row, n_tokens)] = True
    return flags


@pytest.mark.parametrize("spec", ["lognormal", "zipf", "uniform"])
@pytest.mark.parametrize("n_tokens", [1, 8, 64])
def test_distinct_and_runs_are_those_of_many_draws(spec: str, n_tokens: int) -> None:
    of = routing(spec)
    use, flags = use_of_routing(of, range(LAYERS), USED), drawn_flags(of, n_tokens)
    assert use.distinct(n_tokens).mean() == pytest.approx(flags.sum(axis=1).mean(), rel=0.03)
    starts = flags & ~np.pad(flags, ((0, 0), (1, 0)))[:, :-1]
    assert expected_runs(use.chance_of_use(n_tokens)).mean() == pytest.approx(starts.sum(axis=1).mean(), rel=0.05)


@pytest.mark.parametrize("bank", [20, 60, 150])
def test_hit_rate_is_that_of_an_lru_bank(bank: int) -> None:
    of = routing()
    held: OrderedDict[tuple[int, int], None] = OrderedDict()
    ids = [of.ids(layer, 0, 1500) for layer in range(LAYERS)]
    hits = asked = 0
    for token in range(1500):
        for layer in range(LAYERS):
            for expert in ids[layer][token]:
                key = (layer, int(expert))
                hits, asked = hits + (token > 300 and key in held), asked + (token > 300)
                held.pop(key, None)
                held[key] = None
                if len(held) > bank:
                    held.popitem(last=False)
    expected = use_of_routing(of, range(LAYERS), USED).hit_rate(bank)
    assert expected == pytest.approx(hits / asked, abs=0.03)


def test_the_fewer_misses_a_bank_takes_in_the_more_it_hits() -> None:
    use = use_of_routing(routing(), range(LAYERS), USED)
    rates = [use.hit_rate(60, admitted) for admitted in (1.0, 0.5, 0.1)]
    assert rates == sorted(rates)
    most_popular = np.sort(use.chances.ravel())[::-1][:60].sum() / use.chances.sum()
    assert rates[-1] < most_popular
    assert use.hit_rate(60, 0.0) == pytest.approx(most_popular, rel=0.1)


def test_a_part_of_scattered_experts_makes_as_many_copies() -> None:
    assert runs_of_part(np.array(8.0), np.array(8.0), np.array(0.5)) == 4
    assert runs_of_part(np.array(8.0), np.array(1.0), np.array(1.0)) == 1


def test_a_bank_for_all_that_lives_always_hits() -> None:
    use = ExpectedUse(np.array([[0.5, 0.5, 0.0]]), 1)
    assert use.hit_rate(2) == 1.0


def test_two_observations_tell_what_lies_between_and_beyond() -> None:
    true = use_of_routing(routing(), range(LAYERS), USED)
    points = np.array([8.0, 256.0])
    seen = np.array([true.distinct(int(n)).mean() for n in points])
    found = use_of_observed(points, seen, 40, EXPERTS, USED)
    for n in (4, 8, 64, 256, 2048):
        assert found.distinct(n).mean() == pytest.approx(true.distinct(n).mean(), rel=0.06)


def test_one_observation_is_met() -> None:
    found = use_of_observed(np.array([64.0]), np.array([30.0]), 3, EXPERTS, USED)
    assert found.distinct(64).mean() == pytest.approx(30.0, rel=0.01)


def test_single_tokens_tell_nothing_of_popularity() -> None:
    points, seen = np.array([1.0, 64.0]), np.array([4.0, 30.0])
    both = use_of_observed(points, seen, 3, EXPERTS, USED)
    assert both.distinct(512) == pytest.approx(use_of_observed(points[1:], seen[1:], 3, EXPERTS, USED).distinct(512))
    usual = use_of_observed(points[:1], seen[:1], 3, EXPERTS, USED)
    assert usual.distinct(512).mean() == pytest.approx(0.8 * EXPERTS, rel=0.1)
