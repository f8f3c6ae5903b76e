"""Layers and ubatches from other people's names: only where they are spelled out."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.importers.nsys.named_ranges import LAYER, UBATCH
from tests.profiler.importers.nsys.exports import KERNEL, RUNTIME, call, events, imported, kernel, nvtx


@pytest.mark.parametrize(
    ("text", "layer"),
    [
        ("model.layers.3.mlp", "3"),
        ("blk.17", "17"),
        ("layer 4", "4"),
        ("Layer=5", "5"),
        ("layers[12]", "12"),
        ("decoder_layer_7", "7"),
        ("[forward] layer: 2", "2"),
        ("n_layers=32", None),
        ("num_hidden_layers 32", None),
        ("layers 0-31", None),
        ("layer 3.5", None),
        ("multilayer 3", None),
        ("LayerNorm 4", None),
        ("layer 99999", None),
        ("aten::mul, op_id = 314339", None),
    ],
)
def test_layer_names(text: str, layer: str | None) -> None:
    found = LAYER.search(text)
    assert (found.group(1) if found else None) == layer


@pytest.mark.parametrize(
    ("text", "ubatch"), [("ubatch 2", "2"), ("micro-batch=7", "7"), ("u-batch: 1", "1"), ("batch 3", None)]
)
def test_ubatch_names(text: str, ubatch: str | None) -> None:
    found = UBATCH.search(text)
    assert (found.group(1) if found else None) == ubatch


def test_the_innermost_named_range_counts_and_the_rest_stays_null(tmp_path: Path) -> None:
    ranges = [
        nvtx(0, 100, "ubatch 1"),
        nvtx(10, 40, "model.layers.0"),
        nvtx(15, 35, "aten::mul"),
        nvtx(50, 90, "model.layers.1"),
    ]
    issued = [(20, 1), (60, 2), (95, 3), (150, 4)]
    tables = {
        "NVTX_EVENTS": ranges,
        RUNTIME: [call(start, start + 2, number) for start, number in issued],
        KERNEL: [kernel(1000 + number, 1010 + number, number) for _, number in issued],
    }
    rows = [row for row in events(imported(tmp_path, tables), "kind", "ubatch", "layer") if row["kind"] == "compute"]
    assert [(row["ubatch"], row["layer"]) for row in rows] == [(1, 0), (1, 1), (1, None), (None, None)]


def test_ranges_of_other_threads_and_unfinished_ones_do_not_count(tmp_path: Path) -> None:
    ranges = [nvtx(0, 100, "layer 1", globalTid=42), nvtx(0, None, "layer 2"), nvtx(0, 100, "layer 3", endGlobalTid=9)]
    tables = {"NVTX_EVENTS": ranges, RUNTIME: [call(20, 22, 1)], KERNEL: [kernel(30, 40, 1)]}
    assert [row["layer"] for row in events(imported(tmp_path, tables), "layer")] == [None, None]
