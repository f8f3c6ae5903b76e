"""Families that no preset has: parameters as published, and what a note says of the rest."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from executor.model import AttentionShape, DenseFfn
from executor.models.hf_config import shape_from_config
from executor.models.load import load_model
from tests.executor.models.hf_configs import OTHERS, written

APPROXIMATED = {"gemma-2-9b", "phi-3-mini-128k"}


@pytest.mark.parametrize("name", OTHERS)
def test_parameters_of_families_that_no_preset_has(tmp_path: Path, name: str) -> None:
    config, published = OTHERS[name]
    model = load_model(str(written(tmp_path, config)))
    assert sum(math.prod(t.shape) for t in model.tensors.values()) == pytest.approx(published, rel=5e-5)
    assert bool(model.shape.notes) == (name in APPROXIMATED)


def test_gemma_windows_and_embeddings() -> None:
    config, _ = OTHERS["gemma-3-27b"]
    shape = shape_from_config({**config["text_config"], "query_pre_attn_scalar": 168}, "g", "c")
    windows = [layer.mixer.window for layer in shape.layers[:7] if isinstance(layer.mixer, AttentionShape)]
    assert windows == [1024, 1024, 1024, 1024, 1024, None, 1024]
    assert shape.tied_embeddings
    assert shape.embedding_scale == pytest.approx(math.sqrt(5376))
    assert shape.layers[0].ffn == DenseFfn(21504, "gelu", post_norm=True)
    mixers = [layer.mixer for layer in shape.layers[4:6] if isinstance(layer.mixer, AttentionShape)]
    assert [(m.rope.theta, m.rope.scaling, m.scale) for m in mixers] == [
        (10000.0, "none", 168**-0.5),
        (1e6, "linear", 168**-0.5),
    ]


def test_granites_multipliers() -> None:
    config = OTHERS["granite-3.0-3b-a800m"][0]
    times = {"residual_multiplier": 0.22, "logits_scaling": 6.0, "attention_multiplier": 0.015625}
    shape = shape_from_config(config | times, "g", "c")
    mixer = shape.layers[0].mixer
    assert isinstance(mixer, AttentionShape)
    assert (shape.embedding_scale, shape.logit_scale) == (12.0, 1 / 6.0)
    assert (shape.layers[0].residual_scale, mixer.scale) == (0.22, 0.015625)
