"""How the engine dequantises: the dispatch, expert stacks, and how strided bytes are described to the fused kernel."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.quants import QUANTS, dispatch
from executor.quants.fused_pieces import pieces_of
from tests.executor.quants.dequant_cases import assert_same_weights, expected, rows, stack
from tests.support import ROOT

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quant", QUANTS)
def test_rows(quant: str, dtype: torch.dtype) -> None:
    raw = rows(quant, 3, 2048, seed=1)
    assert_same_weights(dispatch.dequantise(raw, quant, dtype), expected(raw, quant, dtype))


@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("quant", QUANTS)
def test_experts_in_use(quant: str, placed: bool) -> None:
    case = stack(quant, 2048, seed=2)
    place_of = case.place_of if placed else None
    got = dispatch.dequantise_experts(case.raw, quant, torch.bfloat16, case.flags, place_of)
    case.check(got, quant, torch.bfloat16, placed=placed)


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_chosen_experts_in_their_order(quant: str, dtype: torch.dtype) -> None:
    case = stack(quant, 3 * 512, seed=5)
    places = torch.tensor([6, 0, 3], dtype=dtype)
    got = dispatch.dequantise_chosen(case.raw, quant, torch.bfloat16, places)
    assert_same_weights(got, expected(case.raw[[6, 0, 3]], quant, torch.bfloat16))


def test_no_expert_in_use() -> None:
    case = stack("Q4_0", 2048, seed=3)
    none = torch.zeros_like(case.flags)
    assert dispatch.dequantise_experts(case.raw, "Q4_0", torch.float32, none, case.place_of).shape[0] == 5


@pytest.mark.parametrize("placed", [True, False])
def test_experts_on_a_device_without_a_fused_kernel(placed: bool) -> None:
    """Converts all experts, whatever an unused one's place says."""
    case = stack("Q6_K", 2048, seed=4)
    place_of = case.place_of if placed else None
    got = dispatch._all_at_once(case.raw, "Q6_K", torch.float16, case.flags, place_of)
    case.check(got, "Q6_K", torch.float16, placed=placed)


def test_a_stack_larger_than_the_bank() -> None:
    """A bank may hold fewer places than the layer has experts."""
    case = stack("Q8_0", 2048, seed=5)
    flags = torch.tensor([0] * 20 + [1], dtype=torch.uint8)
    place_of = torch.full((21,), 4, dtype=torch.int32)
    got = dispatch.dequantise_experts(case.raw, "Q8_0", torch.float32, flags, place_of)
    assert len(got) == 21
    assert_same_weights(got[20], expected(case.raw[4], "Q8_0", torch.float32))


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """Views of up to 3 dimensions, any of which may skip; the last is contiguous."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    steps = [draw(st.sampled_from([1, 1, 2])) for _ in shape[1:]] + [1]
    base = torch.arange(10**4, dtype=torch.int32)
    strides, distance = [0] * len(shape), 1
    for dim in reversed(range(len(shape))):
        strides[dim] = distance * (steps[dim] if dim < len(shape) - 1 else 1)
        distance = strides[dim] * shape[dim]
    return base.as_strided(shape, strides, draw(st.integers(0, 9)))


@given(view=views())
@settings(max_examples=200, deadline=None)
def test_pieces_are_the_view(view: torch.Tensor) -> None:
    pieces = pieces_of(view)
    if pieces is None:
        assert sum(step != 1 for step in _jumps(view)) > 1
        return
    found = view.as_strided((pieces.number, pieces.n_bytes), (pieces.stride, 1), view.storage_offset())
    assert torch.equal(found.flatten(), view.flatten())


def _jumps(view: torch.Tensor) -> list[int]:
    """How many times farther apart than contiguous each dimension is, given those inside it."""
    kept = [(length, step) for length, step in zip(view.shape, view.stride(), strict=True) if length > 1]
    inner = [length * step for length, step in kept[1:]] + [1]
    return [step // size for (_, step), size in zip(kept, inner, strict=True)]


def test_too_many_pieces_are_gathered() -> None:
    assert pieces_of(torch.zeros(70_000, 2, dtype=torch.uint8)[:, :1]) is None


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("name", ["fused", "direct"])
def test_kernels_in_the_interpreter(name: str) -> None:
    path = f"tests/executor/quants/test_{name}_interpreted.py"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", path]
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
