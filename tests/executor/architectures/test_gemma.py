"""`gemma3`: windows with a rotation of their own, norms behind each part, GELU, scaled embeddings, capped logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.model import AttentionShape
from executor.models.load import load_model
from tests.executor.architectures.blocks import DENSE, HEAD_DIM, HIDDEN, KEYS, NORMS, QK_NORMS, merged
from tests.random_gguf import (
    Shapes,
    check_against_llama_cpp,
    check_in_engine,
    check_refused,
    model_tensors,
    write_random_gguf,
)

BLOCK: Shapes = {
    **NORMS,
    **QK_NORMS,
    **DENSE,
    "post_attention_norm.weight": (HIDDEN,),
    "post_ffw_norm.weight": (HIDDEN,),
}
GEMMA = {**KEYS, "block_count": 7, "attention.sliding_window": 8, "rope.freq_base": 1e6}
CASES: dict[str, dict[str, Any]] = {
    "every sixth layer sees all": {},
    "no window": {"attention.sliding_window": None},
    "a window of 0 is none": {"attention.sliding_window": 0},
    "a pattern": {"attention.sliding_window_pattern": 2},
    "a list": {"attention.sliding_window_pattern": [False, True, True, False, True, False, True]},
    "the windows' rotation": {"rope.freq_base_swa": 500.0},
    "scaled but for the windows": {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    "capped logits": {"final_logit_softcapping": 2.0},
}


def write(path: Path, n_layers: int = 7, **changed: Any) -> Path:
    keys = merged(GEMMA | {"block_count": n_layers}, changed)
    n_heads = keys["attention.head_count"]
    rows = {"q": n_heads, "k": keys["attention.head_count_kv"], "v": keys["attention.head_count_kv"]}
    attention: Shapes = {f"attn_{name}.weight": (HEAD_DIM * n, HIDDEN) for name, n in rows.items()}
    attention["attn_output.weight"] = (HIDDEN, HEAD_DIM * n_heads)
    tensors = model_tensors(HIDDEN, [attention | BLOCK] * n_layers)
    del tensors["output.weight"]  # tied to the embedding
    return write_random_gguf(path, "gemma3", keys, tensors)


@pytest.mark.parametrize("case", CASES)
def test_as_llama_cpp_computes_it(case: str, tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", **CASES[case]))


def test_the_27b_scales_by_the_width_a_head(tmp_path: Path) -> None:
    """llama.cpp knows it by its 62 layers."""
    path = write(tmp_path / "model.gguf", 62, **{"attention.head_count": 2, "attention.head_count_kv": 1})
    mixer = load_model(str(path)).shape.layers[0].mixer
    assert isinstance(mixer, AttentionShape)
    assert mixer.scale == (HIDDEN // 2) ** -0.5
    check_against_llama_cpp(path)


def test_every_arm_agrees(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", 3, **{"attention.sliding_window_pattern": 2, "final_logit_softcapping": 2.0})
    check_in_engine(path, ["off", "on", "full", "cpu"])


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a cap below 0": ({"final_logit_softcapping": -1.0}, "final_logit_softcapping is -1.0"),
    "an endless cap": ({"final_logit_softcapping": float("inf")}, "final_logit_softcapping is inf"),
    "a base below 1": ({"rope.freq_base_swa": 0.5}, "rope.freq_base_swa is 0.5"),
    "a list of numbers": ({"attention.sliding_window_pattern": [1.5, 2.5]}, "sliding_window_pattern is"),
    "a window beyond counting": ({"attention.sliding_window": "all"}, "sliding_window is 'all'"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_absurd_values_get_one_sentence(case: str, tmp_path: Path) -> None:
    changed, words = HOSTILE[case]
    check_refused(write(tmp_path / "model.gguf", **changed), words)
