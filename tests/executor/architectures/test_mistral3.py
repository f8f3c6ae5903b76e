"""`mistral3`: YaRN as the file says it, queries that grow with their position.

Biases of the FFN and scales of matrices: those of `llama`, and of others that have them, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executor.errors import HprofError
from executor.models.load import load_model
from tests.random_gguf import (
    Shapes,
    check_against_llama_cpp,
    check_in_engine,
    ffn_tensors,
    model_tensors,
    write_random_gguf,
)

HIDDEN, HEAD_DIM, HEADS, KV_HEADS, N_FF, N_EXPERTS = 128, 32, 4, 2, 96, 8
KEYS: dict[str, Any] = {
    "embedding_length": HIDDEN,
    "block_count": 2,
    "feed_forward_length": N_FF,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.key_length": HEAD_DIM,
    "attention.value_length": HEAD_DIM,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.dimension_count": HEAD_DIM,
    "rope.freq_base": 1e4,
}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 16.0,
    "rope.scaling.original_context_length": 8,
    "rope.scaling.yarn_beta_fast": 8.0,
    "rope.scaling.yarn_beta_slow": 0.5,
}
GROWING = {"attention.temperature_scale": 0.5}
EXPERTS = {"expert_count": N_EXPERTS, "expert_used_count": 2}
BIASES = (
    "attn_q.bias",
    "attn_k.bias",
    "attn_v.bias",
    "attn_output.bias",
    "ffn_gate.bias",
    "ffn_up.bias",
    "ffn_down.bias",
)
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "as Ministral 3": ({**YARN, **GROWING, "rope.scaling.yarn_log_multiplier": 1.0}, ()),
    "another multiplier": ({**YARN, "rope.scaling.yarn_log_multiplier": 0.4, "rope.scaling.attn_factor": 1.2}, ()),
    "yarn without a multiplier": (YARN, ()),
    "growing with the context's length": ({**GROWING, "context_length": 16}, ()),
    "all biases": ({}, BIASES),
    "a bias of up alone": ({}, ("ffn_up.bias",)),
    "experts": ({**YARN, **GROWING, **EXPERTS}, ()),
}


def write(path: Path, *vectors: str, architecture: str = "mistral3", split: bool = False, **changed: Any) -> Path:
    """The file with some keys changed and some biases and scales; `split`: each expert's matrices apart."""
    keys = KEYS | changed
    block: Shapes = {
        "attn_norm.weight": (HIDDEN,),
        "attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
        "attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
        "ffn_norm.weight": (HIDDEN,),
    }
    if "expert_count" in keys:
        block |= {"ffn_gate_inp.weight": (N_EXPERTS, HIDDEN), **ffn_tensors(HIDDEN, N_FF, "_exps", (N_EXPERTS,))}
    else:
        block |= ffn_tensors(HIDDEN, N_FF)
    if architecture.startswith("qwen3"):
        block |= {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}
    for name in vectors:
        n_scales = N_EXPERTS if "_exps" in name else 1
        block[name] = (n_scales,) if name.endswith(".scale") else block[name.replace(".bias", ".weight")][:1]
    if split:
        stacks = [name for name in block if "_exps" in name]
        each = {name.replace("_exps", f".{i}"): block[name][1:] for name in stacks for i in range(N_EXPERTS)}
        block = {name: dims for name, dims in block.items() if name not in stacks} | each
    return write_random_gguf(path, architecture, keys, model_tensors(HIDDEN, [block, block]))


@pytest.mark.parametrize("case", CASES)
def test_as_llama_cpp_computes_it(case: str, tmp_path: Path) -> None:
    changed, biases = CASES[case]
    check_against_llama_cpp(write(tmp_path / "model.gguf", *biases, **changed))


@pytest.mark.parametrize("biases", [BIASES, ("ffn_down.bias",)])
def test_llamas_biases_as_llama_cpp_computes_them(biases: tuple[str, ...], tmp_path: Path) -> None:
    check_against_llama_cpp(write(tmp_path / "model.gguf", *biases, architecture="llama"))


ATTENTION_SCALES = ("attn_q.scale", "attn_k.scale", "attn_v.scale", "attn_output.scale")
DENSE_SCALES = ("ffn_gate.scale", "ffn_up.scale", "ffn_down.scale")
EXPERT_SCALES = ("ffn_gate_exps.scale", "ffn_up_exps.scale", "ffn_down_exps.scale")
SCALED: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "llama": ("llama", (*ATTENTION_SCALES, *DENSE_SCALES), {}),
    "llama, with biases": ("llama", (*ATTENTION_SCALES, *DENSE_SCALES, *BIASES), {}),
    "llama, experts": ("llama", (*ATTENTION_SCALES, *EXPERT_SCALES), EXPERTS),
    "mistral3": ("mistral3", DENSE_SCALES[1:], {}),
    "qwen2": ("qwen2", (*ATTENTION_SCALES, *BIASES[:3]), {}),
    "qwen3": ("qwen3", (*ATTENTION_SCALES, *DENSE_SCALES), {}),
    "qwen3moe": ("qwen3moe", EXPERT_SCALES[1:], EXPERTS | {"expert_feed_forward_length": N_FF}),
}


@pytest.mark.parametrize("case", SCALED)
def test_scales_as_llama_cpp_applies_them(case: str, tmp_path: Path) -> None:
    architecture, vectors, changed = SCALED[case]
    check_against_llama_cpp(write(tmp_path / "model.gguf", *vectors, architecture=architecture, **changed))


def test_every_arm_scales_experts(tmp_path: Path) -> None:
    _, vectors, changed = SCALED["llama, experts"]
    path = write(tmp_path / "model.gguf", *vectors, architecture="llama", **changed)
    check_in_engine(path, ["off", "on", "full", "cpu"])


def test_scales_that_llama_cpp_does_not_apply_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", "ffn_up.scale", architecture="qwen2")
    with pytest.raises(HprofError, match=r"blk.0.ffn_up.scale is none that hprof reads for the architecture qwen2"):
        load_model(str(path))


@pytest.mark.parametrize("architecture", ["llama", "mistral3"])
def test_experts_one_by_one_are_refused_as_in_llama_cpp(architecture: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", architecture=architecture, split=True, **EXPERTS)
    with pytest.raises(HprofError, match=r"experts are stored one by one \(blk.0.ffn_gate.0.weight\).*convert"):
        load_model(str(path))


@pytest.mark.parametrize("case", ["all biases", "experts"])
def test_every_arm_agrees(case: str, tmp_path: Path) -> None:
    changed, biases = CASES[case]
    check_in_engine(write(tmp_path / "model.gguf", *biases, **changed), ["off", "on", "hot", "full", "cpu"])


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "turns the wrong way round": ({**YARN, "rope.scaling.yarn_beta_slow": 9.0}, "yarn scaling between 9 and 8 turns"),
    "turns without end": ({**YARN, "rope.scaling.yarn_beta_fast": 3e38}, "yarn scaling between"),
    "a multiplier below 0": ({**YARN, "rope.scaling.yarn_log_multiplier": -1.0}, "yarn_log_multiplier is -1.0"),
    "endless growth": ({"attention.temperature_scale": float("inf")}, "temperature_scale is inf"),
    "growth of absurd size": ({"attention.temperature_scale": 1e30}, "queries that grow by 1e.30"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_absurd_values_get_one_sentence(case: str, tmp_path: Path) -> None:
    changed, words = HOSTILE[case]
    path = write(tmp_path / "model.gguf", **changed)
    with pytest.raises(HprofError, match=words) as caught:
        load_model(str(path))
    assert "\n" not in str(caught.value)
