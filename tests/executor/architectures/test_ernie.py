"""`ernie4_5` and `ernie4_5-moe`: dense layers first, a bias on the choice of experts, a shared expert."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.executor.architectures.blocks import (
    ATTENTION,
    DENSE,
    EXPERT_KEYS,
    EXPERTS,
    HIDDEN,
    KEYS,
    NORMS,
    experts,
    merged,
)
from tests.random_gguf import (
    Shapes,
    check_against_llama_cpp,
    check_in_engine,
    check_refused,
    ffn_tensors,
    model_tensors,
    write_random_gguf,
)

N_FF_SHARED = 64
MOE: dict[str, Any] = {
    **KEYS,
    **EXPERT_KEYS,
    "expert_shared_count": 2,
    "expert_shared_feed_forward_length": N_FF_SHARED,
    "interleave_moe_layer_step": 1,
    "leading_dense_block_count": 1,
}
SPARSE: Shapes = {
    **NORMS,
    **ATTENTION,
    **experts(),
    **ffn_tensors(HIDDEN, N_FF_SHARED, "_shexp"),
    "exp_probs_b.bias": (EXPERTS,),
}


def write(path: Path, sparse: Shapes = SPARSE, **changed: Any) -> Path:
    blocks = [{**NORMS, **ATTENTION, **DENSE}, sparse]
    return write_random_gguf(path, "ernie4_5-moe", merged(MOE, changed), model_tensors(HIDDEN, blocks))


def test_as_llama_cpp_computes_it(tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf"))


def test_without_a_shared_expert_or_a_bias(tmp_path: Path) -> None:
    keys = {"expert_shared_count": 0, "expert_shared_feed_forward_length": None}
    check_against_llama_cpp(write(tmp_path / "model.gguf", {**NORMS, **ATTENTION, **experts()}, **keys))


def test_dense(tmp_path: Path) -> None:
    tensors = model_tensors(HIDDEN, [{**NORMS, **ATTENTION, **DENSE}] * 2)
    del tensors["output.weight"]
    check_against_llama_cpp(write_random_gguf(tmp_path / "model.gguf", "ernie4_5", KEYS, tensors))


def test_every_arm_agrees(tmp_path: Path) -> None:
    check_in_engine(write(tmp_path / "model.gguf"), ["off", "on", "hot", "cache", "full", "cpu"])


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "no step": ({"interleave_moe_layer_step": None}, "interleave_moe_layer_step is missing"),
    "a step of 0": ({"interleave_moe_layer_step": 0}, "interleave_moe_layer_step is 0"),
    "no layer of experts": ({"interleave_moe_layer_step": 7}, "blk.1.ffn_gate.weight is missing"),
    "more experts than there are": ({"expert_used_count": 9}, "9 of 8 experts"),
    "experts without end": ({"expert_count": 2**31 - 1}, "2147483647 experts"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_absurd_values_get_one_sentence(case: str, tmp_path: Path) -> None:
    changed, words = HOSTILE[case]
    check_refused(write(tmp_path / "model.gguf", **changed), words)
