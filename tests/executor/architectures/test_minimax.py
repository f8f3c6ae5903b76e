"""`minimax-m2`: norms over all heads together, half of each head rotated, a bias on the choice of experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.random_gguf import (
    Shapes,
    check_against_llama_cpp,
    check_in_engine,
    ffn_tensors,
    model_tensors,
    write_random_gguf,
)

HIDDEN, HEAD_DIM, HEADS, KV_HEADS, N_FF, N_EXPERTS = 64, 32, 4, 2, 48, 8
KEYS: dict[str, Any] = {
    "embedding_length": HIDDEN,
    "block_count": 2,
    "feed_forward_length": N_FF,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.key_length": HEAD_DIM,
    "attention.value_length": HEAD_DIM,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.dimension_count": HEAD_DIM // 2,
    "rope.freq_base": 1e4,
    "expert_count": N_EXPERTS,
    "expert_used_count": 2,
    "expert_feed_forward_length": N_FF,
    "expert_gating_func": 2,
}
CASES: dict[str, dict[str, Any]] = {
    "as MiniMax-M2": {},
    "softmax, keys that are ignored": {
        "expert_gating_func": 1,
        "expert_weights_norm": False,
        "expert_weights_scale": 2.5,
    },
}


def write(path: Path, **changed: Any) -> Path:
    """The file with some keys changed."""
    block: Shapes = {
        "attn_norm.weight": (HIDDEN,),
        "attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
        "attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_q_norm.weight": (HEADS * HEAD_DIM,),
        "attn_k_norm.weight": (KV_HEADS * HEAD_DIM,),
        "attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
        "ffn_norm.weight": (HIDDEN,),
        "ffn_gate_inp.weight": (N_EXPERTS, HIDDEN),
        "exp_probs_b.bias": (N_EXPERTS,),
        **ffn_tensors(HIDDEN, N_FF, "_exps", (N_EXPERTS,)),
    }
    return write_random_gguf(path, "minimax-m2", KEYS | changed, model_tensors(HIDDEN, [block, block]))


@pytest.mark.parametrize("case", CASES)
def test_as_llama_cpp_computes_it(case: str, tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", **CASES[case]))


def test_every_arm_agrees(tmp_path: Path) -> None:
    check_in_engine(write(tmp_path / "model.gguf"), ["off", "on", "hot", "cache", "full", "cpu"])
