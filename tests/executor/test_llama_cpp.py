"""Models whose files say more than the kept ones, against llama.cpp's logits of the moment (the wheel `xllamacpp`).

Weights are F32, so that both round in the last digits only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from executor.models.load import load_model
from executor.reference import forward
from tests.llama_cpp import llama_logits, relative_errors

N_VOCAB, HIDDEN, N_HEADS, N_KV_HEADS, HEAD_DIM, N_FF, N_EXPERTS = 96, 128, 4, 2, 32, 96, 4
TOKENS = np.random.default_rng(7).integers(0, N_VOCAB, 32).tolist()


class Writer:
    """A file of two layers with random weights; `joined` stores q, k and v as one."""

    def __init__(self, path: Path, architecture: str, **keys: Any) -> None:
        self.out, self.rng, self.architecture = (
            gguf.GGUFWriter(path, architecture),
            np.random.default_rng(1),
            architecture,
        )
        usual = {
            "context_length": 256, "embedding_length": HIDDEN, "block_count": 2, "feed_forward_length": N_FF,
            "attention.head_count": N_HEADS, "attention.head_count_kv": N_KV_HEADS, "attention.key_length": HEAD_DIM,
            "attention.value_length": HEAD_DIM, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4,
            "rope.dimension_count": HEAD_DIM, "vocab_size": N_VOCAB,
        }  # fmt: skip
        for key, value in (usual | keys).items():
            self.key(key, value)
        self.out.add_tokenizer_model("no_vocab")

    def key(self, key: str, value: Any) -> None:
        kinds = {
            bool: self.out.add_bool,
            int: self.out.add_uint32,
            float: self.out.add_float32,
            str: self.out.add_string,
        }
        kinds[type(value)](f"{self.architecture}.{key}", value)

    def matrix(self, name: str, *shape: int) -> None:
        self.out.add_tensor(name, self.rng.standard_normal(shape, dtype=np.float32) / np.float32(shape[-1] ** 0.5))

    def vector(self, name: str, size: int, middle: float = 0.0) -> None:
        self.out.add_tensor(name, self.rng.uniform(middle - 0.5, middle + 0.5, size).astype(np.float32))

    def write(
        self, *, experts: bool = False, joined: bool = False, biased: str = "", output_bias: bool = False
    ) -> None:
        self.matrix("token_embd.weight", N_VOCAB, HIDDEN)
        self.vector("output_norm.weight", HIDDEN, 1.0)
        self.matrix("output.weight", N_VOCAB, HIDDEN)
        if output_bias:
            self.vector("output.bias", N_VOCAB)
        for layer in range(2):
            self.attention(f"blk.{layer}.", joined=joined, biased=biased)
            norm = "post_attention_norm" if self.architecture in ("gpt-oss", "glm4moe") else "ffn_norm"
            self.vector(f"blk.{layer}.{norm}.weight", HIDDEN, 1.0)
            is_dense = not experts or (self.architecture == "glm4moe" and layer == 0)
            self.ffn(f"blk.{layer}.") if is_dense else self.experts(f"blk.{layer}.")
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()

    def attention(self, block: str, *, joined: bool, biased: str) -> None:
        self.vector(f"{block}attn_norm.weight", HIDDEN, 1.0)
        rows = {"q": N_HEADS * HEAD_DIM, "k": N_KV_HEADS * HEAD_DIM, "v": N_KV_HEADS * HEAD_DIM}
        for name, n_rows in {"qkv": sum(rows.values())}.items() if joined else rows.items():
            self.matrix(f"{block}attn_{name}.weight", n_rows, HIDDEN)
            if name in biased:
                self.vector(f"{block}attn_{name}.bias", n_rows)
        self.matrix(f"{block}attn_output.weight", HIDDEN, N_HEADS * HEAD_DIM)
        if self.architecture.startswith("qwen3"):
            self.vector(f"{block}attn_q_norm.weight", HEAD_DIM, 1.0)
            self.vector(f"{block}attn_k_norm.weight", HEAD_DIM, 1.0)
        if self.architecture == "gpt-oss":
            self.vector(f"{block}attn_output.bias", HIDDEN)
            self.vector(f"{block}attn_sinks.weight", N_HEADS)

    def ffn(self, block: str) -> None:
        self.matrix(f"{block}ffn_gate.weight", N_FF, HIDDEN)
        self.matrix(f"{block}ffn_up.weight", N_FF, HIDDEN)
        self.matrix(f"{block}ffn_down.weight", HIDDEN, N_FF)

    def experts(self, block: str) -> None:
        self.matrix(f"{block}ffn_gate_inp.weight", N_EXPERTS, HIDDEN)
        self.matrix(f"{block}ffn_gate_exps.weight", N_EXPERTS, N_FF, HIDDEN)
        self.matrix(f"{block}ffn_up_exps.weight", N_EXPERTS, N_FF, HIDDEN)
        self.matrix(f"{block}ffn_down_exps.weight", N_EXPERTS, HIDDEN, N_FF)
        if self.architecture == "gpt-oss":
            self.vector(f"{block}ffn_gate_inp.bias", N_EXPERTS)
            for name, width in (("gate", N_FF), ("up", N_FF), ("down", HIDDEN)):
                self.matrix(f"{block}ffn_{name}_exps.bias", N_EXPERTS, width)
        if self.architecture == "glm4moe":
            self.vector(f"{block}exp_probs_b.bias", N_EXPERTS)
            self.matrix(f"{block}ffn_gate_shexp.weight", N_FF, HIDDEN)
            self.matrix(f"{block}ffn_up_shexp.weight", N_FF, HIDDEN)
            self.matrix(f"{block}ffn_down_shexp.weight", HIDDEN, N_FF)


MOE = {"expert_count": N_EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": N_FF}
IGNORED = {"expert_weights_scale": 2.5, "expert_weights_norm": False, "expert_gating_func": 2}
WINDOW = {**MOE, "attention.sliding_window": 8}
GLM = {**MOE, "expert_shared_count": 1, "leading_dense_block_count": 1, "rope.dimension_count": HEAD_DIM // 2}
WITH_BIASES = {"experts": True, "biased": "qkv"}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("llama", {}, {}),
    "q, k, v joined": ("qwen2", {}, {"joined": True, "biased": "qkv"}),
    "an expert's width unsaid": (
        "qwen3moe",
        {"expert_count": N_EXPERTS, "expert_used_count": 2, "feed_forward_length": 2 * N_FF},
        {"experts": True},
    ),
    "biases of k and v alone": ("llama", {}, {"biased": "kv"}),
    "bias of the output": ("qwen2", {}, {"biased": "qkv", "output_bias": True}),
    "a factor without a type": ("llama", {"rope.scaling.factor": 4.0}, {}),
    "the older factor": ("llama", {"rope.scale_linear": 4.0}, {}),
    "yarn with turns of its own": (
        "llama",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_beta_fast": 4.0,
            "rope.scaling.yarn_beta_slow": 2.0,
        },
        {},
    ),
    "router keys that are ignored": ("qwen3moe", {**MOE, **IGNORED}, {"experts": True}),
    "gpt-oss": ("gpt-oss", {**WINDOW, **IGNORED}, WITH_BIASES),
    "gpt-oss, all windows": ("gpt-oss", {**WINDOW, "attention.sliding_window_pattern": 0}, WITH_BIASES),
    "gpt-oss, the windows' rotation": ("gpt-oss", {**WINDOW, "rope.freq_base_swa": 100.0}, WITH_BIASES),
    "glm4moe without its router's keys": ("glm4moe", GLM, WITH_BIASES),
    "glm4moe, normalised": ("glm4moe", {**GLM, "expert_weights_norm": True, "expert_weights_scale": 2.5}, WITH_BIASES),
    "a factor of 0 is none": ("llama", {"rope.scaling.factor": 0.0}, {}),
    "an older factor of 0": ("llama", {"rope.scale_linear": 0.0}, {}),
    "dense layers first, which is ignored": ("qwen3moe", {**MOE, "leading_dense_block_count": 1}, {"experts": True}),
    "glm4moe, a shared width that is ignored": (
        "glm4moe",
        {**GLM, "expert_shared_feed_forward_length": 17},
        WITH_BIASES,
    ),
    "glm4moe, softmax": ("glm4moe", {**GLM, "expert_gating_func": 1}, WITH_BIASES),
}


@pytest.mark.parametrize("case", CASES)
def test_as_llama_cpp_computes_it(case: str, tmp_path: Path) -> None:
    architecture, keys, tensors = CASES[case]
    path = tmp_path / "model.gguf"
    Writer(path, architecture, **keys).write(**tensors)
    found = forward(load_model(str(path)), TOKENS).numpy()
    errors = relative_errors(found, llama_logits(path, TOKENS, N_VOCAB))
    assert np.median(errors) < 2e-3
    assert errors.max() < 5e-3
