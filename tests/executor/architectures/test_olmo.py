"""`olmoe`: norms over all heads of queries and of keys together; experts' weights not normalised."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.errors import HprofError
from executor.models.load import load_model
from tests.executor.architectures.blocks import (
    ATTENTION,
    EXPERT_KEYS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KEYS,
    KV_HEADS,
    N_FF_EXPERT,
    NORMS,
    experts,
    merged,
)
from tests.random_gguf import Shapes, check_against_llama_cpp, check_in_engine, model_tensors, write_random_gguf

AS_WIDE = {"feed_forward_length": N_FF_EXPERT, "expert_feed_forward_length": None}
OLMOE = merged(KEYS | EXPERT_KEYS, AS_WIDE | {"attention.head_count_kv": HEADS, "expert_used_count": 2})
QK_NORMS: Shapes = {"attn_q_norm.weight": (HEADS * HEAD_DIM,), "attn_k_norm.weight": (HEADS * HEAD_DIM,)}
MANY_KEYS: Shapes = {f"attn_{name}.weight": (HEADS * HEAD_DIM, HIDDEN) for name in "kv"}
BLOCK: Shapes = {**NORMS, **ATTENTION, **MANY_KEYS, **QK_NORMS, **experts()}


def write(path: Path, block: Shapes = BLOCK, **changed: object) -> Path:
    return write_random_gguf(path, "olmoe", merged(OLMOE, changed), model_tensors(HIDDEN, [block] * 2))


def test_as_llama_cpp_computes_it(tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf"))


def test_keys_may_have_fewer_heads(tmp_path: Path) -> None:
    keys = KV_HEADS * HEAD_DIM
    block: Shapes = {**BLOCK, **ATTENTION, "attn_k_norm.weight": (keys,)}
    path = write(tmp_path / "model.gguf", block, **{"attention.head_count_kv": KV_HEADS})
    mixer = load_model(str(path)).tensors["blk.0.attn_k_norm.weight"]
    assert mixer.shape == (keys,)


def test_every_arm_agrees(tmp_path: Path) -> None:
    check_in_engine(write(tmp_path / "model.gguf"), ["off", "on", "hot", "cache", "full", "cpu"])


def test_norms_of_each_head_are_refused(tmp_path: Path) -> None:
    block = {**BLOCK, "attn_q_norm.weight": (HEAD_DIM,)}
    with pytest.raises(HprofError, match=r"attn_q_norm.weight has the shape \(32,\), but .* ask for \(128,\)"):
        load_model(str(write(tmp_path / "model.gguf", block)))
