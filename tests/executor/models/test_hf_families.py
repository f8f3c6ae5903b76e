"""Families that no preset has: parameters as published, and what a note says of the rest."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from executor.model import AttentionShape
from executor.models.hf_config import shape_from_config
from executor.models.load import load_model
from tests.executor.models.hf_configs import OTHERS, written


@pytest.mark.parametrize("name", OTHERS)
def test_parameters_of_families_that_no_preset_has(tmp_path: Path, name: str) -> None:
    config, published = OTHERS[name]
    model = load_model(str(written(tmp_path, config)))
    assert sum(math.prod(t.shape) for t in model.tensors.values()) == pytest.approx(published, rel=5e-5)
    assert model.shape.notes or name == "kimi-k2"


def test_gemma_windows_and_embeddings() -> None:
    config, _ = OTHERS["gemma-3-27b"]
    shape = shape_from_config(config["text_config"], "g", "c")
    windows = [layer.mixer.window for layer in shape.layers[:7] if isinstance(layer.mixer, AttentionShape)]
    assert windows == [1024, 1024, 1024, 1024, 1024, None, 1024]
    assert shape.tied_embeddings
    assert shape.embedding_scale == pytest.approx(math.sqrt(5376))
