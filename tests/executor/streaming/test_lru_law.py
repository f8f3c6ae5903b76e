"""The expert cache's LRU does what the distinct count of its routing predicts."""

from __future__ import annotations

import numpy as np
import pytest

from executor.arrays import Floats
from executor.routing.routers import Routing
from executor.routing.spec import routing_from_spec
from executor.streaming.expert_cache import ExpertCacheIndex
from tests.executor.routing.law import predicted_distinct


def _lru_hit_rate(distinct: Floats, n_places: float, n_used: int) -> float:
    """The hit rate of an LRU of `n_places` experts of one layer, from the layer's distinct count alone.

    `distinct[n]` is the mean number of distinct experts that n tokens use (distinct[0] = 0). An LRU of C places
    holds the distinct experts of the last T tokens, where distinct(T) = C; of the next token's `n_used` experts
    those miss that are new to these T: distinct(T + 1) - distinct(T) (Che's approximation; Che, Tung and Wang,
    2002).
    """
    tokens = np.arange(distinct.size)
    if n_places >= distinct[-1]:
        return 1.0 - float(distinct[-1] - distinct[-2]) / n_used
    window = float(np.interp(n_places, distinct, tokens))
    return 1.0 - (float(np.interp(window + 1, tokens, distinct)) - n_places) / n_used


def _simulated_hit_rate(routing: Routing, n_places: int, n_tokens: int, n_used: int) -> float:
    cache, hits = ExpertCacheIndex(n_places, "lru"), 0
    ids = routing.ids(0, 0, n_tokens)
    warm = n_tokens // 4
    for position, chosen in enumerate(ids):
        admission = cache.admit(0, chosen.tolist())
        hits += admission.missed.count(False) if position >= warm else 0
    return hits / ((n_tokens - warm) * n_used)


@pytest.mark.parametrize("n_places", [16, 32, 64])
def test_distinct_count_predicts_the_lru(n_places: int) -> None:
    n_experts, n_used = 128, 8
    routing = routing_from_spec("lognormal", layers=[0], n_experts=n_experts, n_used=n_used, seed=3)
    distinct = np.array([predicted_distinct(routing, 0, n) if n else 0.0 for n in range(400)])
    predicted = _lru_hit_rate(distinct, n_places, n_used)
    assert predicted == pytest.approx(_simulated_hit_rate(routing, n_places, 3000, n_used), abs=0.02)
