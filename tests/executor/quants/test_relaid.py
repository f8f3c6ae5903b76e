"""The layouts of residents: the same bytes in another order, a whole number of times in a row."""

from __future__ import annotations

import pytest
import torch

from executor.quants import QUANTS
from executor.quants.relaid import RELAID, quant_of, relay, resident_layout, stored_type
from tests.executor.quants.direct_cases import matrix


@pytest.mark.parametrize("layout", RELAID)
def test_scales_come_first_and_nothing_else_changes(layout: str) -> None:
    quant = quant_of(layout)
    block_bytes = QUANTS[quant].block_bytes
    raw = matrix(quant, 3, 512, seed=1)
    moved = raw.clone()
    relay(moved.view(-1), layout)
    eight, blocks = moved.view(-1, 8 * block_bytes), raw.view(-1, 8, block_bytes)
    assert torch.equal(eight[:, :16].view(-1, 8, 2), blocks[..., :2])
    assert torch.equal(eight[:, 16:].reshape(-1, 8, block_bytes - 2), blocks[..., 2:])


def test_other_types_stay_as_they_are() -> None:
    raw = matrix("Q4_K", 2, 512, seed=2)
    moved = raw.clone()
    relay(moved.view(-1), "Q4_K")
    assert torch.equal(moved, raw)


def test_only_rows_of_whole_blocks_are_relaid() -> None:
    assert resident_layout("Q4_0", 768) == "Q4_0/8"
    assert resident_layout("Q4_0", 736) == "Q4_0"
    assert resident_layout("Q6_K", 768) == "Q6_K"
    for layout, kind in RELAID.items():
        own = QUANTS[quant_of(layout)]
        assert kind.block_bytes * own.block_size == own.block_bytes * kind.block_size  # as large
        assert stored_type(layout) is kind
    assert stored_type("Q4_0") is QUANTS["Q4_0"]
