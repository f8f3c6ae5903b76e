"""Architectures whose layers others have too: `glm4`, `dots1` and `seed_oss`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.errors import HprofError
from executor.models.load import load_model
from tests.executor.architectures.blocks import (
    ATTENTION,
    DENSE,
    EXPERT_KEYS,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KEYS,
    KV_HEADS,
    N_FF,
    N_FF_EXPERT,
    NORMS,
    QK_NORMS,
    experts,
    merged,
)
from tests.random_gguf import (
    Shapes,
    check_against_llama_cpp,
    check_in_engine,
    ffn_tensors,
    model_tensors,
    write_random_gguf,
)

BIASES: Shapes = {
    "attn_q.bias": (HEADS * HEAD_DIM,),
    "attn_k.bias": (KV_HEADS * HEAD_DIM,),
    "attn_v.bias": (KV_HEADS * HEAD_DIM,),
}
GLM4: Shapes = {
    **NORMS,
    **ATTENTION,
    **BIASES,
    "ffn_up.weight": (2 * N_FF, HIDDEN),
    "ffn_down.weight": (HIDDEN, N_FF),
    "post_attention_norm.weight": (HIDDEN,),
    "post_ffw_norm.weight": (HIDDEN,),
}
SEED: Shapes = {
    **ATTENTION,
    **BIASES,
    **DENSE,
    "attn_norm.weight": (HIDDEN,),
    "post_attention_norm.weight": (HIDDEN,),
}
AS_MANY: Shapes = {f"attn_{name}.weight": (HEADS * HEAD_DIM, HIDDEN) for name in "kv"}
DOTS: Shapes = {**NORMS, **ATTENTION, **AS_MANY, **QK_NORMS}
DOTS_EXPERTS: Shapes = {
    **experts(),
    **ffn_tensors(HIDDEN, 2 * N_FF_EXPERT, "_shexp"),
    "exp_probs_b.bias": (EXPERTS,),
}
BLOCKS: dict[str, list[Shapes]] = {
    "glm4": [GLM4, GLM4],
    "seed_oss": [SEED, SEED],
    "dots1": [DOTS | DENSE, DOTS | DOTS_EXPERTS],
}
OF_DOTS: dict[str, Any] = {
    "attention.head_count_kv": HEADS,
    "expert_shared_count": 2,
    "leading_dense_block_count": 1,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
    "expert_gating_func": 2,
}
KEYS_OF: dict[str, dict[str, Any]] = {
    "glm4": KEYS | {"rope.dimension_count": HEAD_DIM // 2},
    "seed_oss": KEYS,
    "dots1": KEYS | EXPERT_KEYS | OF_DOTS,
}


def write(path: Path, architecture: str, **changed: Any) -> Path:
    keys = merged(KEYS_OF[architecture], changed)
    return write_random_gguf(path, architecture, keys, model_tensors(HIDDEN, BLOCKS[architecture]))


@pytest.mark.parametrize("architecture", BLOCKS)
def test_as_llama_cpp_computes_it(architecture: str, tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", architecture))


@pytest.mark.parametrize("architecture", BLOCKS)
def test_every_arm_agrees(architecture: str, tmp_path: Path) -> None:
    arms = ["off", "on", "full", "cpu", *(["hot", "cache"] if architecture == "dots1" else [])]
    check_in_engine(write(tmp_path / "model.gguf", architecture), arms)


def test_glm4_that_sees_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", "glm4", **{"rope.dimension_sections": [2, 3, 3, 0]})
    with pytest.raises(HprofError, match=r"rope.dimension_sections says that it sees"):
        load_model(str(path))
    path = write(tmp_path / "plain.gguf", "glm4", **{"rope.dimension_sections": [0, 0, 0, 0]})
    assert load_model(str(path)).shape.architecture == "glm4"


def test_dots1_with_an_unknown_gate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HprofError, match="gating function 9 is not known"):
        load_model(str(write(tmp_path / "model.gguf", "dots1", expert_gating_func=9)))
