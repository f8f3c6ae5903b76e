"""The expert cache's bookkeeping against a model that is too plain to be wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.streaming.eviction import Eviction
from executor.streaming.expert_cache import ExpertCache, merge_places

ORDERS: list[Eviction] = ["lru", "frequency"]
N_PLACES = 5

batches = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, 6), unique=True, max_size=N_PLACES)), max_size=60
)


class PlainCache:
    """The rule, spelled out: every decision looks at the whole history."""

    def __init__(self, n_places: int, eviction: Eviction) -> None:
        self.n_places, self.eviction = n_places, eviction
        self.history: list[tuple[int, int]] = []
        self.held: set[tuple[int, int]] = set()

    def admit(self, layer: int, experts: list[int]) -> list[bool]:
        """Which of the experts were missed."""
        batch = [(layer, expert) for expert in experts]
        missed = [key not in self.held for key in batch]
        self.history += [key for key in batch if key in self.held]
        for key, is_missed in zip(batch, missed, strict=True):
            if is_missed:
                if len(self.held) == self.n_places:
                    self.held.remove(min(self.held - set(batch), key=self._worth))
                self.held.add(key)
                self.history.append(key)
        return missed

    def _worth(self, key: tuple[int, int]) -> tuple[int, int]:
        last_use = len(self.history) - self.history[::-1].index(key)
        return (0 if self.eviction == "lru" else self.history.count(key), last_use)


def held(cache: ExpertCache) -> dict[tuple[int, int], int]:
    """What is cached, and where."""
    return {(layer, e): place for layer in range(3) for e, place in cache.lookup(layer, range(200)).items()}


@pytest.mark.parametrize("eviction", ORDERS)
@settings(deadline=None)
@given(batches=batches)
def test_it_keeps_what_the_plain_rule_keeps(eviction: Eviction, batches: list[tuple[int, list[int]]]) -> None:
    cache, plain = ExpertCache(N_PLACES, eviction), PlainCache(N_PLACES, eviction)
    for layer, experts in batches:
        before = held(cache)
        admission = cache.admit(layer, experts)
        after = held(cache)
        assert admission.missed == plain.admit(layer, experts)
        assert set(after) == plain.held
        assert len(cache) == len(after) <= N_PLACES
        assert admission.experts == experts
        assert admission.places == [after[layer, expert] for expert in experts]
        assert len(set(after.values())) == len(after)
        assert set(after.values()) <= set(range(N_PLACES))
        assert all(before[key] == after[key] for key in before.keys() & after.keys())  # nothing moves


@pytest.mark.parametrize("eviction", ORDERS)
@settings(deadline=None)
@given(batches=batches)
def test_what_the_batch_uses_is_never_evicted(eviction: Eviction, batches: list[tuple[int, list[int]]]) -> None:
    cache = ExpertCache(N_PLACES, eviction)
    for layer, experts in batches:
        hits = cache.lookup(layer, experts)
        admission = cache.admit(layer, experts)
        places = dict(zip(admission.experts, admission.places, strict=True))
        assert hits.items() <= places.items()
        assert cache.lookup(layer, experts) == places


@settings(deadline=None)
@given(batches=batches)
def test_a_look_up_changes_nothing(batches: list[tuple[int, list[int]]]) -> None:
    cache, untouched = ExpertCache(3, "lru"), ExpertCache(3, "lru")
    for layer, experts in batches:
        if len(experts) > 3:
            cache.lookup(layer, experts)
            continue
        assert cache.admit(layer, experts) == untouched.admit(layer, experts)
    assert held(cache) == held(untouched)


def test_lru_and_frequency_part_where_one_expert_is_old_and_popular() -> None:
    kept = {}
    for eviction in ORDERS:
        cache = ExpertCache(2, eviction)
        for expert in (7, 7, 7, 1, 2):  # 7 is popular, 1 is recent when 2 comes
            cache.admit(0, [expert])
        kept[eviction] = sorted(cache.lookup(0, range(10)))
    assert kept == {"lru": [1, 2], "frequency": [2, 7]}


def test_frequency_remembers_what_it_evicted() -> None:
    cache = ExpertCache(2, "frequency")
    for expert in (4, 4, 4, 5, 5, 5, 5, 6, 4):  # 6 evicts 4, which comes back: its fourth use
        cache.admit(0, [expert])
    assert sorted(cache.lookup(0, range(10))) == [4, 5]
    cache.admit(0, [6])
    assert sorted(cache.lookup(0, range(10))) == [4, 6]  # four uses each, and 5's were longer ago


@pytest.mark.parametrize("eviction", ORDERS)
def test_more_than_fits_is_told_before(eviction: Eviction) -> None:
    cache = ExpertCache(3, eviction)
    assert [cache.can_hold(n) for n in (0, 3, 4)] == [True, True, False]


def test_the_ranking_does_not_grow_with_every_use() -> None:
    cache = ExpertCache(8, "frequency")
    for step in range(5000):
        cache.admit(0, [step % 8])
    order: Any = cache._order
    assert len(order._heap) <= 4 * 8 + 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), unique_by=(lambda t: t[0], lambda t: t[1])))
def test_merged_uploads_cover_each_expert_once(pairs: list[tuple[int, int]]) -> None:
    runs = merge_places(pairs)
    assert sorted((e + i, p + i) for e, p, count in runs for i in range(count)) == sorted(pairs)
    ends = {(e + count, p + count) for e, p, count in runs}
    assert not ends & {(e, p) for e, p, _ in runs}  # no two runs could be one
