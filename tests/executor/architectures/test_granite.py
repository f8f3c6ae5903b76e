"""`granite` and `granitemoe`: multipliers of embedding, attention, residuals and logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.executor.architectures.blocks import (
    ATTENTION,
    DENSE,
    EXPERT_KEYS,
    HEAD_DIM,
    HIDDEN,
    KEYS,
    N_FF,
    N_FF_EXPERT,
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
GRANITE: dict[str, Any] = {
    **KEYS,
    "logit_scale": 4.0,
    "embedding_scale": 6.0,
    "residual_scale": 0.25,
    "attention.scale": 0.125,
}
MOE = merged(GRANITE | EXPERT_KEYS, {"feed_forward_length": N_FF_EXPERT, "expert_feed_forward_length": None})
WITH_SHARED = {"expert_shared_feed_forward_length": N_FF_SHARED}
CASES: dict[str, dict[str, Any]] = {
    "all multipliers": {},
    "logits alone": {"embedding_scale": None, "residual_scale": None, "attention.scale": None},
    "factors for long contexts": {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 16},
    "0 is none": {"embedding_scale": 0.0, "residual_scale": 0.0, "attention.scale": 0.0},
}


def write(path: Path, architecture: str, *, with_shared: bool = False, **changed: Any) -> Path:
    is_moe = architecture == "granitemoe"
    ffn: Shapes = experts() if is_moe else DENSE
    shared = ffn_tensors(HIDDEN, N_FF_SHARED, "_shexp") if with_shared else {}
    keys = merged((MOE if is_moe else GRANITE) | (WITH_SHARED if with_shared else {}), changed)
    tensors = model_tensors(HIDDEN, [{**NORMS, **ATTENTION, **ffn, **shared}] * 2)
    if keys.get("rope.scaling.type") == "longrope":
        tensors |= {f"rope_factors_{name}.weight": (HEAD_DIM // 2,) for name in ("short", "long")}
    return write_random_gguf(path, architecture, keys, tensors)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("architecture", ["granite", "granitemoe"])
def test_as_llama_cpp_computes_it(architecture: str, case: str, tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", architecture, **CASES[case]))


def test_without_positions(tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", "granite", **{"rope.scaling.finetuned": False}))


def test_with_biases(tmp_path: Path) -> None:
    biases: Shapes = {"ffn_gate.bias": (N_FF,), "ffn_up.bias": (N_FF,), "ffn_down.bias": (HIDDEN,)}
    tensors = model_tensors(HIDDEN, [{**NORMS, **ATTENTION, **DENSE, **biases, "attn_output.bias": (HIDDEN,)}] * 2)
    check_against_llama_cpp(write_random_gguf(tmp_path / "model.gguf", "granite", GRANITE, tensors))


def test_with_a_shared_expert(tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", "granitemoe", with_shared=True))


@pytest.mark.parametrize("architecture", ["granite", "granitemoe"])
def test_every_arm_agrees(architecture: str, tmp_path: Path) -> None:
    is_moe = architecture == "granitemoe"
    arms = ["off", "on", "hot", "cache", "full", "cpu"] if is_moe else ["off", "on", "full", "cpu"]
    check_in_engine(write(tmp_path / "model.gguf", architecture, with_shared=is_moe), arms)


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "no logit scale": ({"logit_scale": None}, "granite.logit_scale is missing"),
    "logits over nothing": ({"logit_scale": 0.0}, "logit_scale is 0.0, but must be a number above 0"),
    "logits of nothing": ({"logit_scale": float("inf")}, "logit_scale is inf"),
    "endless logits": ({"logit_scale": 1e-44}, "logits times"),
    "an endless residual": ({"residual_scale": 3e38}, "residual stream times"),
    "a residual that is no number": ({"residual_scale": float("nan")}, "residual_scale is nan"),
    "an endless embedding": ({"embedding_scale": 3e38}, "embeddings times"),
    "endless attention": ({"attention.scale": 3e38}, "attention logits times"),
    "a scale below 0": ({"attention.scale": -1.0}, "attention.scale is -1.0"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_absurd_values_get_one_sentence(case: str, tmp_path: Path) -> None:
    changed, words = HOSTILE[case]
    check_refused(write(tmp_path / "model.gguf", "granite", **changed), words)
