"""One token's fused kernels, run by Triton's interpreter on the CPU: `TRITON_INTERPRET=1 pytest` with Triton installed.

The interpreter must be chosen before a kernel is imported, so `test_one_token` runs this file in a process of its own.
It truncates bfloat16 instead of rounding, so that type is left to tests/gpu.
"""

from __future__ import annotations

import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs with TRITON_INTERPRET=1", allow_module_level=True)
pytest.importorskip("triton")

from tests.executor.layers import token_cases as cases

CPU = torch.device("cpu")


@pytest.mark.parametrize("n", [8, 96, 130])
def test_norm(n: int) -> None:
    cases.check_norm(n, CPU, torch.float32)


@pytest.mark.parametrize("n", [1, 300, 9000])
def test_arg_max(n: int) -> None:
    cases.check_arg_max(n, CPU)


def test_arg_max_of_odd_numbers() -> None:
    cases.check_arg_max_of_odd_numbers(CPU)


def test_router_of_odd_numbers() -> None:
    cases.check_router_of_odd_numbers(CPU, torch.float32)


@pytest.mark.parametrize("name", cases.ROUTERS)
def test_router(name: str) -> None:
    cases.check_router(cases.ROUTERS[name], CPU, torch.float32)


@pytest.mark.parametrize("name", cases.ATTENTION)
@pytest.mark.parametrize("n_rows", [64, 256])
def test_attention(name: str, n_rows: int) -> None:
    cases.check_attention(cases.ATTENTION[name], n_rows, [0, 1, 40, 63, n_rows - 1], CPU, torch.float32)
