"""Where one token's fused kernels are used, and the kernels themselves in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from executor.layers import one_token
from executor.model import AttentionShape, MoeFfn, RopeShape, TemperatureShape
from tests.support import ROOT

ATTENTION = AttentionShape(4, 2, 64, RopeShape(10000.0, 64))


class OnGpu:
    """What is asked of a tensor before a kernel is chosen."""

    is_cuda = True

    def __init__(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> None:
        self.shape, self.dtype, self.ndim = shape, dtype, len(shape)

    def is_contiguous(self) -> bool:
        return True


@pytest.fixture
def with_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_token, "has_triton", lambda: True)


@pytest.mark.usefixtures("with_triton")
def test_one_row_in_sixteen_bits_on_a_gpu() -> None:
    assert one_token.norm_serves(OnGpu(1, 64))  # type: ignore[arg-type]
    assert not one_token.norm_serves(OnGpu(2, 64))  # type: ignore[arg-type]
    assert not one_token.norm_serves(OnGpu(1, 64, dtype=torch.float32))  # type: ignore[arg-type]
    assert not one_token.norm_serves(torch.zeros(1, 64, dtype=torch.bfloat16))


def test_never_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_token, "has_triton", lambda: False)
    assert not one_token.norm_serves(OnGpu(1, 64))  # type: ignore[arg-type]


@pytest.mark.usefixtures("with_triton")
@pytest.mark.parametrize(
    ("shape", "served"),
    [
        (ATTENTION, True),
        (replace(ATTENTION, qk_norm=True, window=9, sinks=True), True),
        (replace(ATTENTION, head_dim=96), False),
        (replace(ATTENTION, head_dim=512), False),
        (replace(ATTENTION, head_dim=256, n_heads=128), False),
        (replace(ATTENTION, qk_norm=True, qk_norm_joint=True), False),
        (replace(ATTENTION, temperature=TemperatureShape(8, 0.5)), False),
    ],
)
def test_attention(shape: AttentionShape, served: bool) -> None:
    q = OnGpu(1, shape.n_heads, shape.head_dim)
    assert one_token.attention_serves(q, shape) is served  # type: ignore[arg-type]


@pytest.mark.usefixtures("with_triton")
@pytest.mark.parametrize(
    ("moe", "served"), [(MoeFfn(128, 8, 64), True), (MoeFfn(128, 8, 64, n_groups=8, n_groups_used=4), False)]
)
def test_router(moe: MoeFfn, served: bool) -> None:
    assert one_token.router_serves(OnGpu(1, 64), moe) is served  # type: ignore[arg-type]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_in_the_interpreter() -> None:
    file = "tests/executor/layers/test_token_kernels_interpreted.py"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", file]
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
