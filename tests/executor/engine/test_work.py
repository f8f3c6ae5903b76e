"""How much work steps are, by hand."""

from __future__ import annotations

import pytest
import torch

from executor.engine.work import dense_work, device_bytes, experts_work, host_bytes, mix_work
from executor.model import AttentionShape, DenseFfn, LayerShape, MoeFfn, RopeShape, TensorInfo
from executor.quants.products import MOST_ROWS

N_WEIGHTS = 64 * 256
Q4_K = TensorInfo("blk.0.ffn_up.weight", "Q4_K", (64, 256), N_WEIGHTS * 9 // 16)
MXFP4 = TensorInfo("blk.0.ffn_up.weight", "MXFP4", (64, 256), N_WEIGHTS * 17 // 32)
BF16 = TensorInfo("blk.0.ffn_up.weight", "BF16", (64, 256), N_WEIGHTS * 2)
NORM = TensorInfo("blk.0.ffn_norm.weight", "F32", (256,), 1024)


@pytest.mark.parametrize(
    ("tensor", "few", "many"),
    [
        (Q4_K, N_WEIGHTS * 9 / 16, N_WEIGHTS * (9 / 16 + 4)),  # read as they are; dequantised in each step
        (MXFP4, N_WEIGHTS * 17 / 32, N_WEIGHTS * (17 / 32 + 4)),
        (BF16, N_WEIGHTS * 2, N_WEIGHTS * 2),
    ],
)
def test_bytes_that_a_product_moves(tensor: TensorInfo, few: float, many: float) -> None:
    """A GPU multiplies few rows by stored bytes; told of it as if it did not, decode took seven times as long."""
    assert [device_bytes(tensor, torch.bfloat16, n) for n in (1, MOST_ROWS, MOST_ROWS + 1)] == [few, few, many]
    assert [host_bytes(tensor, torch.bfloat16, n) for n in (1, MOST_ROWS + 1)] == [few, few]


def test_who_computes_in_float32_wants_all_of_it() -> None:
    assert device_bytes(Q4_K, torch.float32, 1) == N_WEIGHTS * (9 / 16 + 8)
    assert host_bytes(Q4_K, torch.float32, 1) == N_WEIGHTS * 4


def test_a_dense_step_counts_its_matrices() -> None:
    work = dense_work([Q4_K, BF16, NORM], 3, torch.bfloat16, host_bytes)
    assert work.flops == 2 * 3 * 2 * N_WEIGHTS
    assert work.n_bytes == N_WEIGHTS * (9 / 16 + 2)


def test_experts_read_those_in_use() -> None:
    stack = TensorInfo("blk.0.ffn_up_exps.weight", "Q4_K", (4, 64, 256), 4 * Q4_K.n_bytes)
    few, many = (experts_work([stack, NORM], MoeFfn(4, 2, 64), n, 3, torch.bfloat16) for n in (5, 50))
    assert few.flops == 2 * N_WEIGHTS * 5 * 2
    assert few.n_bytes == 3 * N_WEIGHTS * 9 / 16
    assert many.n_bytes == 3 * N_WEIGHTS * (9 / 16 + 4)


@pytest.mark.parametrize(("n_tokens", "n_past"), [(1, 0), (1, 9), (7, 0), (7, 2), (12, 3)])
def test_attention_in_chunks_sees_its_own_chunk(n_tokens: int, n_past: int) -> None:
    layer = LayerShape(AttentionShape(2, 1, 8, RopeShape(1e4, 8), chunk=5), DenseFfn(8))
    work = mix_work(layer, [], n_tokens, n_past, torch.bfloat16)
    seen = sum(position % 5 + 1 for position in range(n_past, n_past + n_tokens))
    assert work.flops == pytest.approx(4 * 2 * 8 * seen)
