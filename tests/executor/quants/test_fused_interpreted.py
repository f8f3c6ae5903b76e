"""The fused kernels, run by Triton's interpreter on the CPU: `TRITON_INTERPRET=1 pytest` with Triton installed.

The interpreter must be chosen before a kernel is imported, so `test_dispatch` runs this file in a process of its own.
It truncates bfloat16 instead of rounding, so that type is left to tests/gpu.
"""

from __future__ import annotations

import os

import pytest
import torch

from executor.quants import QUANTS
from tests.executor.quants.dequant_cases import assert_same_weights, expected, rows, stack

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs with TRITON_INTERPRET=1", allow_module_level=True)
pytest.importorskip("triton")

from executor.quants import fused
from executor.quants.fused import Tiling

SMALL = Tiling(weights=1024, warps=4, tiles=2)
POISON = 12345.0
_empty = fused._empty


def _poisoned(raw: torch.Tensor, quant: str, dtype: torch.dtype, leading: tuple[int, ...]) -> torch.Tensor:
    return _empty(raw, quant, dtype, leading).fill_(POISON)


@pytest.mark.parametrize(("quant", "dtype"), [(quant, torch.float32) for quant in QUANTS] + [("Q4_K", torch.float16)])
def test_equals_gguf_bit_for_bit_over_several_tiles(quant: str, dtype: torch.dtype) -> None:
    raw = rows(quant, 1, 3 * 1024 + 256, seed=1)
    got = fused.dequantise(raw, quant, dtype, SMALL)
    assert got is not None
    assert_same_weights(got, expected(raw, quant, dtype))


@pytest.mark.parametrize("quant", QUANTS)
def test_strided_rows(quant: str) -> None:
    wide = rows(quant, 3, 3 * 1024, seed=2)
    half = wide.shape[1] // 2
    raw = wide[:, half:] if half % 4 == 0 and half % QUANTS[quant].block_bytes == 0 else wide[::2]
    got = fused.dequantise(raw, quant, torch.float32, SMALL)
    assert got is not None
    assert_same_weights(got, expected(raw, quant, torch.float32))


@pytest.mark.parametrize(("quant", "placed"), [(quant, True) for quant in QUANTS] + [("Q6_K", False)])
def test_used_experts_only(quant: str, placed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    case = stack(quant, 3 * 1280, seed=3)
    monkeypatch.setattr(fused, "_empty", _poisoned)
    place_of = case.place_of if placed else None
    got = fused.dequantise_experts(case.raw, quant, torch.float32, case.flags, place_of, SMALL)
    assert got is not None
    case.check(got, quant, torch.float32, placed=placed)
    assert (got[case.flags == 0] == POISON).all()


def test_bytes_that_the_kernel_cannot_read_are_left_to_the_reference() -> None:
    odd = torch.zeros(1 + 18, dtype=torch.uint8)[1:]
    assert fused.dequantise(odd, "Q4_0", torch.float32) is None
    assert fused.dequantise(torch.zeros(5 * 4, dtype=torch.uint8), "F32", torch.float32) is None
    assert fused.dequantise(torch.zeros(17, dtype=torch.uint8), "Q4_0", torch.float32) is None
