"""`qwen2vl`, `qwen3vl` and `qwen3vlmoe`: the text part of models that see; pairs turn by time, height and width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.models.load import load_model
from tests.executor.architectures.blocks import (
    ATTENTION,
    DENSE,
    EXPERT_KEYS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KEYS,
    KV_HEADS,
    NORMS,
    QK_NORMS,
    experts,
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

SECTIONS = "rope.dimension_sections"
BIASES: Shapes = {
    "attn_q.bias": (HEADS * HEAD_DIM,),
    "attn_k.bias": (KV_HEADS * HEAD_DIM,),
    "attn_v.bias": (KV_HEADS * HEAD_DIM,),
}
BLOCKS: dict[str, Shapes] = {
    "qwen2vl": {**NORMS, **ATTENTION, **BIASES, **DENSE},
    "qwen3vl": {**NORMS, **ATTENTION, **QK_NORMS, **DENSE},
    "qwen3vlmoe": {**NORMS, **ATTENTION, **QK_NORMS, **experts()},
}
IN_A_ROW, IN_TURN = [4, 6, 6, 0], [6, 5, 5, 0]
KEYS_OF: dict[str, dict[str, Any]] = {
    "qwen2vl": KEYS | {SECTIONS: IN_A_ROW},
    "qwen3vl": KEYS | {SECTIONS: IN_TURN, "n_deepstack_layers": 1},
    "qwen3vlmoe": KEYS | EXPERT_KEYS | {SECTIONS: IN_TURN, "n_deepstack_layers": 1},
}


def write(path: Path, architecture: str, **changed: Any) -> Path:
    tensors = model_tensors(HIDDEN, [BLOCKS[architecture]] * 2)
    return write_random_gguf(path, architecture, merged(KEYS_OF[architecture], changed), tensors)


@pytest.mark.parametrize("architecture", BLOCKS)
def test_as_llama_cpp_computes_it(architecture: str, tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", architecture))


@pytest.mark.parametrize(("architecture", "sections"), [("qwen2vl", [2, 3, 3, 0]), ("qwen3vl", [2, 2, 2, 0])])
def test_few_sections_begin_again(architecture: str, sections: list[int], tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", architecture, **{SECTIONS: sections}))


def test_every_arm_agrees(tmp_path: Path) -> None:
    check_in_engine(write(tmp_path / "model.gguf", "qwen3vlmoe"), ["off", "on", "hot", "cache", "full", "cpu"])


@pytest.mark.parametrize(
    ("architecture", "sections", "words"),
    [
        ("qwen2vl", [4, 6, 5, 1], "leaves some of 16 rotated pairs where they are"),
        ("qwen3vl", [4, 6, 6, 0], "leaves some of 16 rotated pairs where they are"),
        ("qwen3vl", [0, 0, 0, 0], "leaves some of 16 rotated pairs where they are"),
        ("qwen2vl", [2**31 - 1, 2**31 - 1, 0, 0], None),
        ("qwen2vl", [1, 2], "a list of 2', but must be one number for each of 4 sections"),
        ("qwen3vl", None, "rope.dimension_sections is missing"),
    ],
)
def test_sections(architecture: str, sections: list[int] | None, words: str | None, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", architecture, **{SECTIONS: sections})
    if words is None:
        assert load_model(str(path)).shape.architecture == architecture
        return
    check_refused(path, words)
