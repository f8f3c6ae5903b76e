"""Loading GGUF files that are made here: what a reader of metadata alone cannot see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from executor.errors import HprofError
from executor.layers.rope import frequencies
from executor.model import AttentionShape, ModelShape, RopeShape
from executor.models.load import load_model
from executor.models.presets import load_preset
from executor.models.tensors import all_shapes
from executor.reference import forward


def write_llama(path: Path, rope_freqs: np.ndarray | None) -> None:
    """`tiny-dense` cut to one layer of random F32 weights, as a GGUF file."""
    shape = replace(load_preset("tiny-dense").shape.sliced(1), n_vocab=64)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(1536)
    writer.add_head_count(8)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    rng = np.random.default_rng(0)
    for name, dims in all_shapes(shape):
        matrix = rng.standard_normal(dims, dtype=np.float32) / np.float32(dims[-1] ** 0.5)
        writer.add_tensor(name, matrix if len(dims) > 1 else np.ones(dims, np.float32))
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", rope_freqs)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rope_of(shape: ModelShape) -> RopeShape:
    mixer = shape.layers[0].mixer
    assert isinstance(mixer, AttentionShape)
    return mixer.rope


def test_rope_freqs_in_a_file_are_llama3_scaling(tmp_path: Path) -> None:
    """llama.cpp stores Llama 3.1's rule as one factor a pair; both ways to say it turn by the same angles."""
    plain = RopeShape(theta=500000.0, dims=64)
    rule = RopeShape(theta=500000.0, dims=64, scaling="llama3", factor=8.0, original_context=8192)
    factors = (frequencies(plain) / frequencies(rule)).numpy().astype(np.float32)
    with_factors, without = tmp_path / "with.gguf", tmp_path / "without.gguf"
    write_llama(with_factors, factors)
    write_llama(without, None)
    model = load_model(str(with_factors))
    torch.testing.assert_close(frequencies(rope_of(model.shape)), frequencies(rule), rtol=1e-6, atol=0)
    assert "rope_freqs.weight" not in model.tensors
    plain_logits = forward(load_model(str(without)), range(60))
    assert not torch.allclose(forward(model, range(60)), plain_logits, atol=1e-4)


@pytest.mark.parametrize(
    ("factors", "words"),
    [
        (np.ones(32, np.float16), "rope_freqs.weight is F16"),
        (np.ones((2, 16), np.float32), r"shape \(2, 16\)"),
        (np.ones(31, np.float32), "31 rotation factors"),
        (np.full(32, np.nan, np.float32), "32 rotation factors"),
        (np.zeros(32, np.float32), "32 rotation factors"),
    ],
)
def test_impossible_rope_freqs_are_refused(tmp_path: Path, factors: np.ndarray, words: str) -> None:
    path = tmp_path / "m.gguf"
    write_llama(path, factors)
    with pytest.raises(HprofError, match=words):
        load_model(str(path))


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(HprofError, match=r"absent\.gguf"):
        load_model(str(tmp_path / "absent.gguf"))
