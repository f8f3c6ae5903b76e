"""Products straight from stored bytes compile for the GPUs that they are for, whatever this machine has."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

from executor.quants import direct
from executor.quants.direct import Onto
from executor.quants.direct_rows import split, split_gated
from executor.quants.relaid import stored_type
from executor.quants.stored import Stored
from tests.triton_compile import compiled_for_h200

BF16 = torch.bfloat16
ROWS = torch.zeros(2, 256, dtype=BF16)
IDS = torch.zeros(2, 3, dtype=torch.int64)
ONTO = Onto(torch.zeros(2, 64, dtype=BF16), 1.0)


def stack(layout: str, *shape: int) -> Stored:
    kind = stored_type(layout)
    return Stored(
        torch.zeros((*shape[:-1], shape[-1] // kind.block_size * kind.block_bytes), dtype=torch.uint8), layout
    )


def gate_and_up() -> object:
    experts, places = stack("Q6_K", 4, 64, 256), torch.zeros(4, dtype=torch.int32)
    return direct.gate_and_up(experts, experts, IDS, places, split(ROWS))


def weighted_down() -> object:
    rows = split(torch.zeros(6, 256, dtype=BF16))
    return direct.weighted_down(stack("Q3_K", 4, 64, 256), IDS, None, torch.zeros(2, 3), rows, BF16)


LAUNCHES: dict[str, tuple[Callable[[], object], int]] = {
    "one row, three matrices": (lambda: direct.dense([stack("Q4_0/8", 64, 256)] * 3, split(ROWS[:1]), BF16), 2),
    "several rows": (lambda: direct.dense([stack("Q5_K", 64, 256)], split(ROWS), BF16), 2),
    "a codebook": (lambda: direct.dense([stack("MXFP4", 64, 256)], split(ROWS[:1]), BF16), 2),
    "gate and up": (gate_and_up, 2),
    "down": (weighted_down, 2),
    "onto rows": (lambda: direct.dense([stack("Q4_0/8", 64, 256)], split(ROWS), BF16, onto=ONTO), 2),
    "activation": (lambda: split_gated(ROWS.float(), ROWS.float(), "gelu"), 1),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_compiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, n_kernels = LAUNCHES[name]
    assert len(compiled_for_h200(launch, monkeypatch)) == n_kernels
