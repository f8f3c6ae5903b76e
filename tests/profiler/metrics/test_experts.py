"""Routing metrics: hand-made sets with known answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from executor.errors import HprofError
from profiler.metrics.experts import (
    MAX_EXPERTS,
    adjacent_layer_jaccard,
    distinct_by_ubatch,
    expert_flags,
    expert_use,
    heat_by_layer,
    typical_use,
)
from profiler.schema import EXPERTS


def experts_of(rows: list[tuple[int, int, list[int]]], n_tokens: int = 1) -> pa.Table:
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
    table = experts_of([(0, 1, [2, 3]), (0, 0, [1, 2]), (1, 0, [0]), (1, 1, [0]), (1, 2, [1])])
    frame = adjacent_layer_jaccard(table)
    assert frame["jaccard"].tolist() == pytest.approx([1 / 3, 1.0, 0.0])
    assert frame["layer"].tolist() == [1, 1, 2]


def looked_up(hits: Sequence[int | None], misses: Sequence[int | None]) -> pa.Table:
    """A row a layer of one ubatch; null where there is no cache."""
    n = len(hits)
    columns: dict[str, Any] = {
        "pass_id": [0] * n,
        "ubatch": [0] * n,
        "layer": range(n),
        "n_tokens": [1] * n,
        "n_experts": [8] * n,
    }
    columns |= {"phase": ["decode"] * n, "distinct": [2] * n, "copied": [1] * n, "hits": hits, "misses": misses}
    return pa.table({f.name: pa.array(columns.get(f.name, [None] * n), f.type) for f in EXPERTS})


@pytest.mark.parametrize(
    ("hits", "misses", "rate"),
    [([0, 0], [2, 2], 0.0), ([2, 1], [0, 1], 0.75), ([1, None], [3, None], 0.25), ([None, None], [None, None], None)],
)
def test_a_cache_that_never_has_an_expert_is_none_that_is_not_there(
    hits: list[int | None], misses: list[int | None], rate: float | None
) -> None:
    table = looked_up(hits, misses)
    wanted = pytest.approx(float("nan") if rate is None else rate, nan_ok=True)
    assert expert_use(table, ["pass_id"]).cache_hit_rate[0] == wanted
    by_ubatch = distinct_by_ubatch(table)
    assert typical_use(by_ubatch)["cache_hit_rate"][0] == wanted
    assert by_ubatch["hits"].isna().tolist() == [rate is None]


def test_how_often_a_layer_uses_its_experts() -> None:
    found = heat_by_layer(np.array([3, 4]), np.array([[1.0, 0.0, 0.25, 1.0], [0.0, 0.5, 0.0, 0.0]]))
    assert found.to_numpy().tolist() == [[3, 3, 1, 2, 0], [4, 1, 3, 0, 1]]


def test_bitmaps_of_unlike_width_stand_side_by_side() -> None:
    table = pa.table({"used": pa.array([None, b"\x01", b"", b"\xff\x03"], pa.binary())})
    assert [np.flatnonzero(row).tolist() for row in expert_flags(table)] == [[], [0], [], list(range(10))]
    with pytest.raises(HprofError, match="the limit is"):
        expert_flags(pa.table({"used": pa.array([bytes(MAX_EXPERTS // 8 + 1)])}))
