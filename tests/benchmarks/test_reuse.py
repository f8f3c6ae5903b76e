"""Reuse distances of hand-made sets of experts."""

from __future__ import annotations

import pytest

from benchmarks.thread.reuse import reuse_distances
from tests.profiler.metrics.test_experts import experts_of


def test_reuse_distances() -> None:
    table = experts_of([(0, 0, [1]), (1, 0, [1]), (2, 0, [2]), (3, 0, [1]), (0, 1, [1])])
    distances = reuse_distances(table)
    assert distances.counts.tolist() == [0, 1, 1]
    assert distances.first_uses == 3
    assert distances.share_within(1) == pytest.approx(1 / 5)
    assert distances.median == 1.0


def test_prefill_ubatches_have_no_reuse_distance() -> None:
    distances = reuse_distances(experts_of([(0, 0, [1]), (1, 0, [1])], n_tokens=64))
    assert distances.share_within(1) is None
    assert distances.median is None
