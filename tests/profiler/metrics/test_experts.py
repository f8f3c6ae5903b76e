"""Routing metrics: hand-made sets with known answers, and the LRU identity against a simulated cache."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from executor.routing.routers import Routing
from executor.routing.spec import routing_from_spec
from executor.streaming.expert_cache import ExpertCacheIndex
from profiler.metrics.experts import adjacent_layer_jaccard, lru_hit_rate, reuse_distances
from profiler.schema import EXPERTS
from tests.executor.routing.law import predicted_distinct


def _experts(rows: list[tuple[int, int, list[int]]], n_tokens: int = 1) -> pa.Table:
    """(ubatch, layer, experts) rows of one pass with eight experts."""
    columns = {
        "pass_id": [0] * len(rows),
        "ubatch": [u for u, _, _ in rows],
        "layer": [layer for _, layer, _ in rows],
        "n_tokens": [n_tokens] * len(rows),
        "n_experts": [8] * len(rows),
        "used": [bytes([sum(1 << e for e in chosen)]) for _, _, chosen in rows],
    }
    table = pa.table({f.name: pa.array(columns.get(f.name, [None] * len(rows)), f.type) for f in EXPERTS})
    return table


def test_jaccard_of_adjacent_layers() -> None:
    table = _experts([(0, 1, [2, 3]), (0, 0, [1, 2]), (1, 0, [0]), (1, 1, [0]), (1, 2, [1])])
    frame = adjacent_layer_jaccard(table)
    assert frame["jaccard"].tolist() == pytest.approx([1 / 3, 1.0, 0.0])
    assert frame["layer"].tolist() == [1, 1, 2]


def test_reuse_distances() -> None:
    table = _experts([(0, 0, [1]), (1, 0, [1]), (2, 0, [2]), (3, 0, [1]), (0, 1, [1])])
    distances = reuse_distances(table)
    assert distances.counts.tolist() == [0, 1, 1]
    assert distances.first_uses == 3
    assert distances.share_within(1) == pytest.approx(1 / 5)
    assert distances.median == 1.0


def test_prefill_ubatches_have_no_reuse_distance() -> None:
    distances = reuse_distances(_experts([(0, 0, [1]), (1, 0, [1])], n_tokens=64))
    assert distances.share_within(1) is None
    assert distances.median is None


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
    predicted = lru_hit_rate(distinct, n_places, n_used)
    assert predicted == pytest.approx(_simulated_hit_rate(routing, n_places, 3000, n_used), abs=0.02)
