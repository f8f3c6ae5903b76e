"""One token's fused kernels compile for the GPUs that they are for, whatever this machine has."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

from executor import stamp_kernels
from executor.layers import token_arg_max, token_norm, token_router
from executor.stamps import AT_BEGIN, AT_END
from tests.executor.layers import token_cases as cases
from tests.triton_compile import compiled_for_h200

BF16 = torch.bfloat16
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def stamps_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    place = torch.zeros(1, dtype=torch.int64)
    for offer in (AT_BEGIN, AT_END):
        monkeypatch.setattr(offer, "take", lambda device: place)


def router(name: str) -> Callable[[], object]:
    moe = cases.ROUTERS[name]
    matrix = torch.zeros(moe.n_experts, 2048, dtype=BF16)
    biases = (matrix[:, 0] if moe.score_bias else None, matrix[:, 1] if moe.score_bias else None)
    into = (
        torch.zeros(1, 2048, dtype=BF16),
        torch.zeros(1, moe.n_used, dtype=torch.int64),
        torch.zeros(1, moe.n_used),
        torch.zeros(moe.n_experts, dtype=torch.uint8),
    )
    begin = torch.zeros(1, dtype=torch.int64)
    given = torch.zeros(4, moe.n_used, dtype=torch.int64) if "as it is" in name else None
    return lambda: token_router.route(ROW, VECTOR, matrix, biases, moe, 1e-5, into, given, begin)


def attention(name: str, n_rows: int) -> Callable[[], object]:
    return lambda: cases.attended(cases.ATTENTION[name], n_rows, 3, CPU, BF16)


ROW, VECTOR = torch.zeros(1, 2048, dtype=BF16), torch.zeros(2048, dtype=BF16)
KERNELS: dict[str, Callable[[], object]] = {
    "stamp": lambda: stamp_kernels.stamp(torch.zeros(1, dtype=torch.int64)),
    "norm": lambda: token_norm.rms_norm(ROW, VECTOR, 1e-5),
    "arg-max": lambda: token_arg_max.arg_max(torch.zeros(151936), torch.zeros(1, dtype=torch.int64)),
    **{f"router, {name}": router(name) for name in cases.ROUTERS},
    **{f"attention, {name}": attention(name, 64) for name in ("plain", "window", "half turns, gate", "no positions")},
    **{f"attention in splits, {name}": attention(name, 512) for name in ("norms", "sinks", "one length")},
}


@pytest.mark.parametrize("name", KERNELS)
def test_compiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(compiled_for_h200(KERNELS[name], monkeypatch)) == 1
