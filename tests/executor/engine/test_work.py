"""How much work steps are, by hand."""

from __future__ import annotations

import pytest
import torch

from executor.engine.work import dense_work, device_bytes, experts_work, host_bytes, mix_work
from executor.model import AttentionShape, DenseFfn, LayerShape, MoeFfn, RopeShape, TensorInfo

N_WEIGHTS = 64 * 256
Q4_K = TensorInfo("blk.0.ffn_up.weight", "Q4_K", (64, 256), N_WEIGHTS * 9 // 16)
MXFP4 = TensorInfo("blk.0.ffn_up.weight", "MXFP4", (64, 256), N_WEIGHTS * 17 // 32)
BF16 = TensorInfo("blk.0.ffn_up.weight", "BF16", (64, 256), N_WEIGHTS * 2)
NORM = TensorInfo("blk.0.ffn_norm.weight", "F32", (256,), 1024)


@pytest.mark.parametrize(
    ("tensor", "on_device", "on_host"),
    [
        (Q4_K, N_WEIGHTS * (9 / 16 + 4), N_WEIGHTS * 9 / 16),  # dequantised in each step; read as they are
        (MXFP4, N_WEIGHTS * (17 / 32 + 4), N_WEIGHTS * 17 / 32),
        (BF16, N_WEIGHTS * 2, N_WEIGHTS * 2),
    ],
)
def test_bytes_that_a_product_moves(tensor: TensorInfo, on_device: float, on_host: float) -> None:
    assert device_bytes(tensor, torch.bfloat16) == on_device
    assert host_bytes(tensor, torch.bfloat16) == on_host


def test_the_host_is_exact_in_float32() -> None:
    assert host_bytes(Q4_K, torch.float32) == N_WEIGHTS * 4


def test_a_dense_step_counts_its_matrices() -> None:
    work = dense_work([Q4_K, BF16, NORM], 3, torch.bfloat16, host_bytes)
    assert work.flops == 2 * 3 * 2 * N_WEIGHTS
    assert work.n_bytes == N_WEIGHTS * (9 / 16 + 2)


def test_experts_read_those_in_use() -> None:
    stack = TensorInfo("blk.0.ffn_up_exps.weight", "Q4_K", (4, 64, 256), 4 * Q4_K.n_bytes)
    work = experts_work([stack, NORM], MoeFfn(4, 2, 64), 5, 3, torch.bfloat16)
    assert work.flops == 2 * N_WEIGHTS * 5 * 2
    assert work.n_bytes == 3 * N_WEIGHTS * (9 / 16 + 4)


@pytest.mark.parametrize(("n_tokens", "n_past"), [(1, 0), (1, 9), (7, 0), (7, 2), (12, 3)])
def test_attention_in_chunks_sees_its_own_chunk(n_tokens: int, n_past: int) -> None:
    layer = LayerShape(AttentionShape(2, 1, 8, RopeShape(1e4, 8), chunk=5), DenseFfn(8))
    work = mix_work(layer, [], n_tokens, n_past, torch.bfloat16)
    seen = sum(position % 5 + 1 for position in range(n_past, n_past + n_tokens))
    assert work.flops == pytest.approx(4 * 2 * 8 * seen)
