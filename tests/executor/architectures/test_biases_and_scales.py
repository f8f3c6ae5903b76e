"""Biases and scales of matrices, where llama.cpp adds and multiplies them; experts stored one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.errors import HprofError
from executor.models.load import load_model
from tests.executor.architectures.blocks import (
    ATTENTION,
    EXPERT_KEYS,
    EXPERTS,
    HIDDEN,
    KEYS,
    N_FF_EXPERT,
    NORMS,
    QK_NORMS,
    experts,
    write_plain,
)
from tests.random_gguf import check_against_llama_cpp, check_in_engine, model_tensors, write_random_gguf

MIXER = ("attn_q", "attn_k", "attn_v", "attn_output")
FFN = ("ffn_gate", "ffn_up", "ffn_down")
STACKS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
OF_EXPERTS = EXPERT_KEYS | {"feed_forward_length": N_FF_EXPERT}
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    "llama, all biases": ("llama", {}, (*MIXER, *FFN), ()),
    "llama, a bias of down alone": ("llama", {}, ("ffn_down",), ()),
    "mistral3, all biases": ("mistral3", {}, (*MIXER, *FFN), ()),
    "mistral3, a bias of up alone": ("mistral3", {}, ("ffn_up",), ()),
    "llama, all scales": ("llama", {}, (), (*MIXER, *FFN)),
    "llama, biases and scales": ("llama", {}, (*MIXER, *FFN), (*MIXER, *FFN)),
    "llama, scales of experts": ("llama", OF_EXPERTS, (), (*MIXER, *STACKS)),
    "mistral3, scales": ("mistral3", {}, (), FFN[1:]),
    "qwen2, scales": ("qwen2", {}, MIXER[:3], MIXER),
    "qwen3, scales": ("qwen3", {}, (), (*MIXER, *FFN)),
    "qwen3moe, scales of experts": ("qwen3moe", EXPERT_KEYS, (), STACKS[1:]),
}


def write(path: Path, case: str) -> Path:
    """The file of a case."""
    architecture, keys, biased, scaled = CASES[case]
    vectors = [f"{name}.bias" for name in biased] + [f"{name}.scale" for name in scaled]
    norms = QK_NORMS if architecture.startswith("qwen3") else {}
    return write_plain(path, architecture, KEYS | keys, vectors, norms)


@pytest.mark.parametrize("case", CASES)
def test_as_llama_cpp_computes_it(case: str, tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", case))


@pytest.mark.parametrize("case", ["llama, biases and scales", "llama, scales of experts"])
def test_every_arm_agrees(case: str, tmp_path: Path) -> None:
    check_in_engine(write(tmp_path / "model.gguf", case), ["off", "on", "full", "cpu"])


def test_scales_that_llama_cpp_does_not_apply_are_refused(tmp_path: Path) -> None:
    path = write_plain(tmp_path / "model.gguf", "qwen2", KEYS, ["ffn_up.scale"])
    with pytest.raises(HprofError, match=r"blk.0.ffn_up.scale is none that hprof reads for the architecture qwen2"):
        load_model(str(path))


def test_scales_of_inputs_are_left_out_as_in_llama_cpp(tmp_path: Path) -> None:
    """NVFP4's, for activations of 4 bits."""
    path = write_plain(tmp_path / "model.gguf", "qwen3", KEYS, ["ffn_up.input_scale", "attn_q.input_scale"], QK_NORMS)
    [note] = load_model(str(path)).shape.notes
    assert note == "no layer reads the tensor blk.0.ffn_up.input_scale and 3 more of the file: left out"
    check_against_llama_cpp(path)


@pytest.mark.parametrize("architecture", ["llama", "mistral3"])
def test_experts_one_by_one_are_refused_as_in_llama_cpp(architecture: str, tmp_path: Path) -> None:
    """Files of before April 2024."""
    stacked = experts()
    apart = {n.replace("_exps", f".{i}"): stacked[n][1:] for n in stacked if "_exps" in n for i in range(EXPERTS)}
    block = NORMS | ATTENTION | {"ffn_gate_inp.weight": (EXPERTS, HIDDEN)} | apart
    tensors = model_tensors(HIDDEN, [block, block])
    path = write_random_gguf(tmp_path / "model.gguf", architecture, KEYS | OF_EXPERTS, tensors)
    with pytest.raises(HprofError, match=r"experts are stored one by one \(blk.0.ffn_gate.0.weight\).*convert"):
        load_model(str(path))
