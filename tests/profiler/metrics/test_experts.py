"""Routing metrics: hand-made sets with known answers."""

from __future__ import annotations

import pyarrow as pa
import pytest

from profiler.metrics.experts import adjacent_layer_jaccard
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
