"""`llama4`: chunks of the context, layers without positions, weights that count on what experts read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.models.load import load_model
from tests.random_gguf import (
    Shapes,
    check_against_llama_cpp,
    check_in_engine,
    check_refused,
    ffn_tensors,
    model_tensors,
    write_random_gguf,
)

HIDDEN, HEAD_DIM, HEADS, KV_HEADS, N_FF, N_FF_EXPERT = 64, 16, 2, 1, 96, 32
KEYS: dict[str, Any] = {
    "embedding_length": HIDDEN,
    "block_count": 4,
    "feed_forward_length": N_FF,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.key_length": HEAD_DIM,
    "attention.value_length": HEAD_DIM,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.dimension_count": HEAD_DIM,
    "rope.freq_base": 1e4,
    "expert_count": 8,
    "expert_used_count": 1,
    "expert_feed_forward_length": N_FF_EXPERT,
    "interleave_moe_layer_step": 2,
}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
CASES: dict[str, dict[str, Any]] = {
    "as Scout": {"interleave_moe_layer_step": 1},
    "as Maverick, without one length of queries and keys": {"expert_count": 128},
    "three experts a token": {"expert_used_count": 3, "expert_weights_scale": 2.5, "expert_weights_norm": True},
    "another pattern, and the chunks' own rotation": {
        "attention.sliding_window": 4,
        "attention.sliding_window_pattern": 2,
        "rope.freq_base_swa": 100.0,
    },
    "yarn": YARN,
    "yarn without one length": {**YARN, "expert_count": 128},
}


def write(path: Path, **changed: Any) -> Path:
    """The file with some keys changed."""
    keys = KEYS | changed
    n_experts, step = keys["expert_count"], keys["interleave_moe_layer_step"]
    attention: Shapes = {
        "attn_norm.weight": (HIDDEN,),
        "attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
        "attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
        "ffn_norm.weight": (HIDDEN,),
    }
    experts: Shapes = {
        "ffn_gate_inp.weight": (n_experts, HIDDEN),
        **ffn_tensors(HIDDEN, N_FF_EXPERT, "_exps", (n_experts,)),
        **ffn_tensors(HIDDEN, N_FF_EXPERT, "_shexp"),
    }
    dense = ffn_tensors(HIDDEN, N_FF)
    blocks = [attention | (experts if step and (i + 1) % step == 0 else dense) for i in range(KEYS["block_count"])]
    return write_random_gguf(path, "llama4", keys, model_tensors(HIDDEN, blocks))


@pytest.mark.parametrize("case", CASES)
def test_as_llama_cpp_computes_it(case: str, tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", **CASES[case]))


def test_beyond_a_chunk_as_llama_cpp_computes_it(tmp_path: Path) -> None:
    """A token of the second chunk sees nothing of the first, and queries without positions have grown."""
    check_against_llama_cpp(write(tmp_path / "model.gguf"), n_tokens=8192 + 48, last=56)


@pytest.mark.parametrize("n_used", [1, 3])
def test_every_arm_agrees(n_used: int, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", expert_used_count=n_used)
    check_in_engine(path, ["off", "on", "hot", "cache", "full", "cpu"])


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "no chunks": ({"attention.sliding_window": 0}, "attention.sliding_window is 0: attention without chunks"),
    "no step": ({"interleave_moe_layer_step": 2**31}, "interleave_moe_layer_step is 2147483648"),
}


def test_a_step_of_none_means_no_experts(tmp_path: Path) -> None:
    model = load_model(str(write(tmp_path / "model.gguf", interleave_moe_layer_step=0)))
    assert not model.has_experts


@pytest.mark.parametrize("case", HOSTILE)
def test_absurd_values_get_one_sentence(case: str, tmp_path: Path) -> None:
    changed, words = HOSTILE[case]
    check_refused(write(tmp_path / "model.gguf", **changed), words)
