"""The plain forward against llama.cpp's logits: as close as ../shared/data/gguf/README.md says an exact one comes."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from executor.load import load_model
from executor.reference import forward
from tests.support import shared_path, smollm2_path

Floats = NDArray[np.float32]

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


@functools.cache
def reference_logits(name: str) -> tuple[list[int], Floats]:
    with np.load(shared_path("data", "gguf", f"{name}.logits.npz")) as archive:
        return archive["tokens"].tolist(), archive["logits"]


def relative_errors(got: torch.Tensor, want: Floats) -> Floats:
    distance = np.linalg.norm(got.numpy() - want, axis=1)
    return np.asarray(distance / np.linalg.norm(want, axis=1))


def run(path: Path, name: str, dtype: torch.dtype, n_ubatch: int | None = None) -> tuple[Floats, int]:
    """Relative errors per position, and how many positions agree on the likeliest token."""
    tokens, want = reference_logits(name)
    got = forward(load_model(str(path)), tokens, dtype, n_ubatch)
    assert got.dtype == torch.float32
    return relative_errors(got, want), int((got.numpy().argmax(1) == want.argmax(1)).sum())


@pytest.mark.parametrize("name", EXPECTED)
def test_float32_is_as_close_as_an_exact_forward(name: str) -> None:
    median, largest, same, _ = EXPECTED[name]
    errors, agreeing = run(shared_path("data", "gguf", f"{name}.gguf"), name, torch.float32)
    assert np.median(errors) == pytest.approx(median, abs=1e-4)
    assert errors.max() == pytest.approx(largest, rel=0.03)
    assert agreeing == same


@pytest.mark.parametrize("name", EXPECTED)
def test_bfloat16_is_somewhat_above(name: str) -> None:
    errors, agreeing = run(shared_path("data", "gguf", f"{name}.gguf"), name, torch.bfloat16)
    assert np.median(errors) < EXPECTED[name][3]
    assert agreeing >= 36


@pytest.mark.parametrize("name", ["llama-dense-Q4_0", "qwen3moe-e8k2-Q4_K"])
@pytest.mark.parametrize("n_ubatch", [1, 7, 39])
def test_cutting_the_prompt_into_ubatches_changes_rounding_only(name: str, n_ubatch: int) -> None:
    tokens, _ = reference_logits(name)
    model = load_model(str(shared_path("data", "gguf", f"{name}.gguf")))
    whole, cut = forward(model, tokens), forward(model, tokens, n_ubatch=n_ubatch)
    assert relative_errors(cut, whole.numpy()).max() < 1e-4


@pytest.mark.model
def test_smollm2() -> None:
    errors, agreeing = run(smollm2_path(), "smollm2-135m-instruct-q4_1", torch.float32)
    assert np.median(errors) == pytest.approx(0.039, abs=5e-4)
    assert errors.max() == pytest.approx(0.102, abs=1e-3)
    assert agreeing == 5


def test_first_layers_alone_run() -> None:
    path = shared_path("data", "gguf", "llama-dense-Q8_0.gguf")
    sliced = load_model(str(path), layers=1)
    assert len(sliced.shape.layers) == 1
    assert "blk.1.attn_q.weight" not in sliced.tensors
    assert forward(sliced, [1, 2, 3]).isfinite().all()
