"""`phi3`: q, k and v in one matrix, gate and up in another; rotation factors for short and for long contexts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.errors import HprofError
from executor.models.load import load_model
from tests.executor.architectures.blocks import (
    ATTENTION,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KEYS,
    KV_HEADS,
    N_FF,
    NORMS,
    merged,
)
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
    "attn_qkv.weight": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
    "attn_output.weight": ATTENTION["attn_output.weight"],
    "ffn_up.weight": (2 * N_FF, HIDDEN),
    "ffn_down.weight": (HIDDEN, N_FF),
}
ORIGINAL = "rope.scaling.original_context_length"
FACTORS = ("rope_factors_short.weight", "rope_factors_long.weight")
CASES: dict[str, dict[str, Any]] = {
    "a short context": {ORIGINAL: 512},
    "a long context": {ORIGINAL: 16},
    "with a magnitude": {ORIGINAL: 16, "rope.scaling.attn_factor": 1.19},
    "half of a head rotated": {ORIGINAL: 16, "rope.dimension_count": HEAD_DIM // 2},
    "a window that is ignored": {ORIGINAL: 512, "attention.sliding_window": 4},
    "the context that the file states": {"context_length": 16},
}


def write(path: Path, changed: dict[str, Any], factors: tuple[str, ...] = FACTORS) -> Path:
    keys = merged(KEYS, changed)
    tensors = model_tensors(HIDDEN, [BLOCK] * 2)
    n = keys.pop("factors", keys["rope.dimension_count"] // 2)
    return write_random_gguf(path, "phi3", keys, tensors | dict.fromkeys(factors, (n,)))


@pytest.mark.parametrize("case", CASES)
def test_as_llama_cpp_computes_it(case: str, tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", CASES[case]))


def test_without_factors(tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", {}, ()))


def test_every_arm_agrees(tmp_path: Path) -> None:
    check_in_engine(write(tmp_path / "model.gguf", {ORIGINAL: 16}), ["off", "on", "full", "cpu"])


def test_joined_matrices_are_read_as_their_parts(tmp_path: Path) -> None:
    tensors = load_model(str(write(tmp_path / "model.gguf", {}))).tensors
    assert tensors["blk.0.ffn_gate.weight"].shape == tensors["blk.0.ffn_up.weight"].shape == (N_FF, HIDDEN)
    assert tensors["blk.1.attn_k.weight"].shape == (KV_HEADS * HEAD_DIM, HIDDEN)


def test_one_list_of_factors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HprofError, match="rotation factors for long contexts alone"):
        load_model(str(write(tmp_path / "model.gguf", {}, FACTORS[1:])))


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "another number of factors": ({"factors": 5}, "5 rotation factors for 32 rotated dimensions"),
    "no context": ({ORIGINAL: 0}, "original_context_length is 0"),
    "half the gates": ({"feed_forward_length": N_FF + 1}, "blk.0.ffn_gate.weight is missing"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_absurd_values_get_one_sentence(case: str, tmp_path: Path) -> None:
    changed, words = HOSTILE[case]
    check_refused(write(tmp_path / "model.gguf", changed), words)
