"""One token whose position lies on the device: the same numbers as with the position in the launch."""

from __future__ import annotations

import pytest
import torch

from executor.layers.attention_kernels import (
    OneToken,
    attend,
    attend_one,
    flash_serves,
    position_on_device,
    rows_for,
)
from executor.layers.mixer import mix
from executor.layers.state import AttentionState, new_state
from executor.model import DenseFfn, LayerShape
from tests.executor.layers.layer_weights import RandomWeights
from tests.executor.layers.test_mixer import CPU, VARIANTS, example

HAS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
DEVICES = [pytest.param("cpu", id="cpu"), pytest.param("cuda", id="cuda", marks=[pytest.mark.cuda, HAS_CUDA])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("total", [1, 2, 37, 300])
def test_rows_after_the_position_are_as_good_as_absent(
    device: str, dtype: torch.dtype, window: int | None, with_sinks: bool, total: int
) -> None:
    q, keys, values, sinks = example(1, 300, torch.device(device), dtype)
    at = OneToken(position_on_device(torch.device(device)), 300)
    at.position.set(total - 1)
    joined = sinks if with_sinks else None
    got = attend_one(q, keys, values, at, window, joined)
    want = attend(q, keys[:total], values[:total], window, joined)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_mixer_gives_the_same_and_remembers_the_same(variant: str) -> None:
    layer = LayerShape(VARIANTS[variant], DenseFfn(32))
    w = RandomWeights(layer, hidden=24)
    x = torch.randn(9, 24, generator=torch.Generator().manual_seed(1))
    plain, other = (new_state(layer.mixer, 300, CPU, torch.float32) for _ in range(2))
    assert isinstance(plain, AttentionState)
    assert isinstance(other, AttentionState)
    at = OneToken(position_on_device(CPU), 256)
    for n_past in range(9):
        at.position.set(n_past)
        token = x[n_past : n_past + 1]
        want = mix(token, w, layer, plain, n_past, 1e-5)
        got = mix(token, w, layer, other, -1, 1e-5, at)  # a position in the launch is not looked at
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert torch.equal(plain.keys, other.keys)
    assert torch.equal(plain.values, other.values)


def test_a_context_has_few_numbers_of_rows() -> None:
    found = [rows_for(position, 5000) for position in range(5000)]
    assert all(position < rows <= max(256, 2 * position) for position, rows in enumerate(found))
    assert sorted(set(found)) == [256, 512, 1024, 2048, 4096, 5000]
    assert rows_for(3, 40) == 40


def test_heads_that_flash_kernels_take() -> None:
    """They refuse widths that 8 does not divide, and such heads are attended by definition."""
    dims = [dim for dim in range(1, 300) if flash_serves(torch.empty(1, 2, dim, dtype=torch.bfloat16))]
    assert dims == list(range(8, 257, 8))
    assert not flash_serves(torch.empty(1, 2, 64))
