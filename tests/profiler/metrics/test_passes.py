"""Which passes count, and how a cell is spelled."""

from __future__ import annotations

import pandas as pd

from profiler.metrics.passes import CellKey, by_cell, cell_of, measured_passes

PASSES = pd.DataFrame(
    {
        "pass_id": [0, 1, 2, 3, 4],
        "arm": ["off", "off", None, "on", "on"],
        "warmup": pd.array([True, False, False, None, False], dtype="boolean"),
        "n_prompt": pd.array([512] * 5, dtype="Int32"),
        "n_gen": pd.array([16] * 5, dtype="Int32"),
        "n_ubatch": pd.array([64, 64, 64, 64, 128], dtype="Int32"),
        "n_depth": pd.array([None] * 5, dtype="Int32"),
    }
)


def test_warm_ups_and_passes_without_an_arm_are_not_measured() -> None:
    assert measured_passes(PASSES)["pass_id"].tolist() == [1, 3, 4]


def test_a_cell_has_its_measured_passes() -> None:
    found = {cell: rows["pass_id"].tolist() for cell, rows in by_cell(PASSES)}
    small, large = CellKey(512, 16, 64, None), CellKey(512, 16, 128, None)
    assert found == {small: [1, 3], large: [4]}
    assert PASSES[small.rows_in(PASSES)]["pass_id"].tolist() == [1, 3]
    assert cell_of(PASSES.iloc[4]) == large


def test_a_cell_is_spelled_as_flags_and_in_words() -> None:
    assert CellKey(512, 16, 64, 0).flags == "-p 512 -n 16 -ub 64 -d 0"
    assert CellKey(512, 16, 64, 0).in_words == "512 prompt tokens, 16 generated, ubatches of 64"
    assert CellKey(None, None, None, None).flags == "all passes"
    assert CellKey(None, None, None, None).in_words == "a pass of unknown size"
    assert CellKey(512, 16, None, None).n_tokens == 528
    assert CellKey(None, 16, None, None).n_tokens is None
