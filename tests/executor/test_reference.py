"""The plain forward against llama.cpp's logits: as close as tests/data/README.md says an exact one comes."""

from __future__ import annotations

import pytest
import torch

from benchmarks.reference_logits import Closeness, closeness
from executor.models.load import load_model
from executor.reference import forward
from tests.gguf_models import logits_path, model_path
from tests.support import shared_path, smollm2_path

# file -> relative L2 error of float32 per position (median, largest), equal top-1, and bfloat16's median
EXPECTED = {
    "llama-dense-F16": (0.0014, 0.0020, 40, 0.015),
    "llama-dense-Q4_0": (0.0031, 0.0041, 40, 0.005),
    "llama-dense-Q4_K": (0.0020, 0.262, 40, 0.003),
    "llama-dense-Q8_0": (0.0201, 0.0371, 40, 0.026),
    "qwen3-dense-Q8_0": (0.0191, 0.0276, 38, 0.024),
    "qwen3moe-e8k2-Q4_K": (0.0020, 0.0080, 40, 0.004),
    "qwen3moe-e8k2-Q8_0": (0.0199, 0.0288, 38, 0.028),
}


def measured(name: str, dtype: torch.dtype, device: str = "cpu") -> Closeness:
    return closeness(model_path(name), logits_path(name), dtype, device)


@pytest.mark.parametrize("name", EXPECTED)
def test_float32_is_as_close_as_an_exact_forward(name: str) -> None:
    median, largest, agreeing, _ = EXPECTED[name]
    got = measured(name, torch.float32)
    assert got.median == pytest.approx(median, abs=1e-4)
    assert got.largest == pytest.approx(largest, rel=0.03)
    assert (got.agreeing, got.positions) == (agreeing, 40)


@pytest.mark.parametrize("name", EXPECTED)
def test_bfloat16_is_somewhat_above(name: str) -> None:
    got = measured(name, torch.bfloat16)
    assert got.median < EXPECTED[name][3]
    assert got.agreeing >= 36


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("name", EXPECTED)
def test_cuda_is_as_close(name: str) -> None:
    median, largest, agreeing, bfloat16_median = EXPECTED[name]
    exact = measured(name, torch.float32, "cuda")
    assert exact.median == pytest.approx(median, abs=2e-4)
    assert exact.largest == pytest.approx(largest, rel=0.05)
    assert exact.agreeing == agreeing
    assert measured(name, torch.bfloat16, "cuda").median < bfloat16_median


@pytest.mark.parametrize("name", ["llama-dense-Q4_0", "qwen3moe-e8k2-Q4_K"])
@pytest.mark.parametrize("n_ubatch", [1, 7, 39])
def test_cutting_the_prompt_into_ubatches_changes_rounding_only(name: str, n_ubatch: int) -> None:
    model = load_model(str(model_path(name)))
    whole, cut = forward(model, range(40)), forward(model, range(40), n_ubatch=n_ubatch)
    assert ((cut - whole).norm(dim=1) < 1e-4 * whole.norm(dim=1)).all()


@pytest.mark.model
def test_smollm2() -> None:
    logits = shared_path("data", "gguf", "smollm2-135m-instruct-q4_1.logits.npz")
    got = closeness(smollm2_path(), logits, torch.float32)
    assert got.median == pytest.approx(0.039, abs=5e-4)
    assert got.largest == pytest.approx(0.102, abs=1e-3)
    assert (got.agreeing, got.positions) == (5, 6)


def test_first_layers_alone_run() -> None:
    path = model_path("llama-dense-Q8_0")
    sliced = load_model(str(path), layers=1)
    assert len(sliced.shape.layers) == 1
    assert "blk.1.attn_q.weight" not in sliced.tensors
    assert forward(sliced, [1, 2, 3]).isfinite().all()
