"""One token's fused kernels on a GPU: close to PyTorch's operations in float32, and the same from launch to launch."""

from __future__ import annotations

import pytest
import torch

from executor.model import AttentionShape, MoeFfn, RopeShape
from executor.triton_support import has_triton

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
    pytest.mark.skipif(not has_triton(), reason="no Triton, or no C compiler"),
]
if has_triton():
    from tests.executor.layers import token_cases as cases

SIXTEEN_BITS = [torch.bfloat16, torch.float16]
QWEN = AttentionShape(32, 4, 128, RopeShape(1e6, 128), qk_norm=True)
DENSE = AttentionShape(40, 8, 128, RopeShape(1e4, 128, interleaved=True))
LARGE_HEADS = AttentionShape(8, 1, 256, RopeShape(1e4, 64), window=512)


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
@pytest.mark.parametrize("n", [8, 130, 2048, 5120])
def test_norm(cuda: torch.device, n: int, dtype: torch.dtype) -> None:
    cases.check_norm(n, cuda, dtype)


@pytest.mark.parametrize("n", [1, 300, 32000, 151936])
def test_arg_max(cuda: torch.device, n: int) -> None:
    cases.check_arg_max(n, cuda)


def test_arg_max_of_odd_numbers(cuda: torch.device) -> None:
    cases.check_arg_max_of_odd_numbers(cuda)


@pytest.mark.parametrize("dtype", [torch.float32, *SIXTEEN_BITS])
def test_router_of_odd_numbers(cuda: torch.device, dtype: torch.dtype) -> None:
    cases.check_router_of_odd_numbers(cuda, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, *SIXTEEN_BITS])
@pytest.mark.parametrize("name", [*cases.ROUTERS, "qwen3-30b-a3b"] if has_triton() else [])
def test_router(cuda: torch.device, name: str, dtype: torch.dtype) -> None:
    known = name in cases.ROUTERS
    cases.check_router(cases.ROUTERS[name] if known else MoeFfn(128, 8, 768), cuda, dtype, 40 if known else 2048)


@pytest.mark.parametrize("dtype", SIXTEEN_BITS)
@pytest.mark.parametrize("name", cases.ATTENTION if has_triton() else [])
@pytest.mark.parametrize("n_rows", [64, 256])
def test_attention(cuda: torch.device, name: str, n_rows: int, dtype: torch.dtype) -> None:
    cases.check_attention(cases.ATTENTION[name], n_rows, [0, 1, 40, 63, n_rows - 1], cuda, dtype)


@pytest.mark.parametrize("shape", [QWEN, DENSE, LARGE_HEADS])
@pytest.mark.parametrize("n_rows", [256, 1024, 5000, 16384])
def test_attention_of_real_shapes(cuda: torch.device, shape: AttentionShape, n_rows: int) -> None:
    cases.check_attention(shape, n_rows, [0, 70, n_rows // 2, n_rows - 1], cuda, torch.bfloat16)


def test_attention_gives_the_same_bits_whoever_is_last(cuda: torch.device) -> None:
    first = cases.attended(QWEN, 16384, 12000, cuda, torch.bfloat16)
    for _ in range(200):
        assert torch.equal(cases.attended(QWEN, 16384, 12000, cuda, torch.bfloat16), first)
