"""`minimax-m2`: norms over all heads together, half of each head rotated, a bias on the choice of experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.executor.architectures.blocks import (
    EXPERT_KEYS,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    KEYS,
    KV_HEADS,
    N_FF_EXPERT,
    write_plain,
)
from tests.random_gguf import Shapes, check_against_llama_cpp, check_in_engine

OWN_KEYS: dict[str, Any] = {
    **EXPERT_KEYS,
    "feed_forward_length": N_FF_EXPERT,
    "rope.dimension_count": HEAD_DIM // 2,
    "expert_gating_func": 2,
}
OWN_TENSORS: Shapes = {
    "attn_q_norm.weight": (HEADS * HEAD_DIM,),
    "attn_k_norm.weight": (KV_HEADS * HEAD_DIM,),
    "exp_probs_b.bias": (EXPERTS,),
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
    return write_plain(path, "minimax-m2", KEYS | OWN_KEYS | changed, extra=OWN_TENSORS)


@pytest.mark.parametrize("case", CASES)
def test_as_llama_cpp_computes_it(case: str, tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", **CASES[case]))


def test_every_arm_agrees(tmp_path: Path) -> None:
    check_in_engine(write(tmp_path / "model.gguf"), ["off", "on", "hot", "cache", "full", "cpu"])
