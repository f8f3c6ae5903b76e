"""Small GGUF models with random weights, for which tests/data/gguf holds llama.cpp's logits.

They are written when first asked for, into .cache/gguf of the checkout, byte for byte as they were when llama.cpp
computed the logits; `python -m tests.gguf_models FOLDER` writes all of them, with the logits, into a folder, for
benchmarks/reference_logits.py.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import gguf
import numpy as np

from tests.support import ROOT

LOGITS: Final = ROOT / "tests" / "data" / "gguf"
HIDDEN, N_LAYERS, N_VOCAB, N_HEADS, N_KV_HEADS, HEAD_DIM = 256, 2, 256, 4, 2, 64
N_USED: Final = 2  # experts of a token


@dataclass(frozen=True, slots=True)
class SmallModel:
    """What the models differ in; `sha256` is of the tensors' bytes, one after the other."""

    architecture: str
    quant: str
    n_ff: int
    n_experts: int
    sha256: str


MODELS: Final = {
    "llama-dense-F16": SmallModel(
        "llama", "F16", 512, 0, "bcb3ad22a194d7734af6d6a3550354305dc05d85dccce88f11e4e4fb7aefdcc4"
    ),
    "llama-dense-Q4_0": SmallModel(
        "llama", "Q4_0", 512, 0, "3870906827f6bea1dc8e2f239f194383f5ec1554b098d17d9f090d2db59fff0e"
    ),
    "llama-dense-Q4_K": SmallModel(
        "llama", "Q4_K", 512, 0, "bc5b76377227bbaee593dcda236d82b6d20480dcc35ff166a5bd7a79fd21c7bb"
    ),
    "llama-dense-Q8_0": SmallModel(
        "llama", "Q8_0", 512, 0, "39023a2a1ac2d1f935f8fcc26dd40d8fc7dc7b26f25be6c11d38abb5ab4721f8"
    ),
    "qwen3-dense-Q8_0": SmallModel(
        "qwen3", "Q8_0", 512, 0, "69f914ed286b92e3989c1a359fecb95fbc9c83e4821bbf577d848815d0377afd"
    ),
    "qwen3moe-e8k2-Q4_K": SmallModel(
        "qwen3moe", "Q4_K", 256, 8, "4df3c2d35fa6f05f1ede88cf11b9079d1fdeb5d40e47d8926a4f0cd031debdba"
    ),
    "qwen3moe-e8k2-Q8_0": SmallModel(
        "qwen3moe", "Q8_0", 256, 8, "94364e183f7ed4337a28e92878a56d0a33a48737dfa7f3d9bad4d7387f56b2e5"
    ),
}


def model_path(name: str) -> Path:
    """The file of one of `MODELS`."""
    return _written(name, ROOT / ".cache" / "gguf")


def logits_path(name: str) -> Path:
    """Its logits as llama.cpp's CPU backend computes them: `tokens` (ids) and `logits` (tokens x vocabulary)."""
    return LOGITS / f"{name}.logits.npz"


@cache
def _written(name: str, folder: Path) -> Path:
    path = folder / f"{name}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        writer = _Writer(unfinished, MODELS[name])
        writer.write()
        assert writer.digest.hexdigest() == MODELS[name].sha256, "numpy draws other numbers than for the logits"
        unfinished.replace(path)
    return path


class _Writer:
    def __init__(self, path: Path, model: SmallModel) -> None:
        self._model = model
        self._quant = gguf.GGMLQuantizationType[model.quant]
        self._rng = np.random.default_rng(0)
        self._out = gguf.GGUFWriter(path, model.architecture)
        self.digest = hashlib.sha256()

    def write(self) -> None:
        self._metadata()
        self._weight("token_embd.weight", N_VOCAB, HIDDEN)
        self._norm("output_norm.weight", HIDDEN)
        self._weight("output.weight", N_VOCAB, HIDDEN)
        for index in range(N_LAYERS):
            self._layer(f"blk.{index}.")
        self._out.write_header_to_file()
        self._out.write_kv_data_to_file()
        self._out.write_tensors_to_file()
        self._out.close()

    def _metadata(self) -> None:
        out = self._out
        out.add_name("random")
        out.add_context_length(131_072)
        out.add_embedding_length(HIDDEN)
        out.add_block_count(N_LAYERS)
        out.add_feed_forward_length(self._model.n_ff)
        out.add_head_count(N_HEADS)
        out.add_head_count_kv(N_KV_HEADS)
        out.add_key_length(HEAD_DIM)
        out.add_value_length(HEAD_DIM)
        out.add_layer_norm_rms_eps(1e-5)
        out.add_rope_freq_base(10_000.0)
        out.add_rope_dimension_count(HEAD_DIM)
        out.add_vocab_size(N_VOCAB)
        out.add_tokenizer_model("no_vocab")
        if self._model.n_experts:
            out.add_expert_count(self._model.n_experts)
            out.add_expert_used_count(N_USED)
            out.add_expert_feed_forward_length(self._model.n_ff)

    def _layer(self, block: str) -> None:
        n_ff, n_experts = self._model.n_ff, self._model.n_experts
        self._norm(f"{block}attn_norm.weight", HIDDEN)
        self._norm(f"{block}ffn_norm.weight", HIDDEN)
        self._weight(f"{block}attn_q.weight", N_HEADS * HEAD_DIM, HIDDEN)
        self._weight(f"{block}attn_k.weight", N_KV_HEADS * HEAD_DIM, HIDDEN)
        self._weight(f"{block}attn_v.weight", N_KV_HEADS * HEAD_DIM, HIDDEN)
        self._weight(f"{block}attn_output.weight", HIDDEN, N_HEADS * HEAD_DIM)
        if self._model.architecture.startswith("qwen3"):
            self._norm(f"{block}attn_q_norm.weight", HEAD_DIM)
            self._norm(f"{block}attn_k_norm.weight", HEAD_DIM)
        experts, suffix = ((n_experts,), "_exps") if n_experts else ((), "")
        if n_experts:
            router = self._rng.standard_normal((n_experts, HIDDEN), dtype=np.float32) / np.float32(HIDDEN**0.5)
            self._add(f"{block}ffn_gate_inp.weight", router)
        self._weight(f"{block}ffn_gate{suffix}.weight", *experts, n_ff, HIDDEN)
        self._weight(f"{block}ffn_up{suffix}.weight", *experts, n_ff, HIDDEN)
        self._weight(f"{block}ffn_down{suffix}.weight", *experts, HIDDEN, n_ff)

    def _add(self, name: str, values: np.ndarray, quant: gguf.GGMLQuantizationType | None = None) -> None:
        self.digest.update(values.tobytes())
        self._out.add_tensor(name, values, raw_dtype=quant)

    def _norm(self, name: str, length: int) -> None:
        self._add(name, self._rng.uniform(0.5, 1.5, length).astype(np.float32))

    def _weight(self, name: str, *shape: int) -> None:
        """Weights of standard deviation 1 / sqrt(columns): as floats, or as random codes under a fitting scale."""
        deviation = float(1 / np.sqrt(shape[-1]))
        if self._model.quant == "F16":
            normal = self._rng.standard_normal(shape, dtype=np.float32).astype(np.float64)
            self._add(name, (normal * deviation).astype(np.float16))
            return
        block_weights, block_bytes = gguf.GGML_QUANT_SIZES[self._quant]
        n_blocks = int(np.prod(shape)) // block_weights
        drawn = np.frombuffer(self._rng.bytes(n_blocks * block_bytes), np.uint8)
        blocks = drawn.reshape(n_blocks, block_bytes).copy()
        for at, scale in _scales(self._model.quant, deviation).items():
            blocks[:, at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
        rows = blocks.reshape(*shape[:-1], shape[-1] // block_weights * block_bytes)
        self._add(name, rows, self._quant)


def _scales(quant: str, deviation: float) -> dict[int, float]:
    """The float16 scales of a block, by the byte where each begins."""
    if quant == "Q8_0":
        return {0: deviation / 74}
    if quant == "Q4_0":
        return {0: deviation / 4.6}
    return {0: deviation / 4.6 / 24, 2: deviation / 4.6 * 8 / 32}  # Q4_K


def main() -> None:
    folder = Path(sys.argv[1])
    for name in MODELS:
        _written(name, folder)
        shutil.copyfile(logits_path(name), folder / logits_path(name).name)


if __name__ == "__main__":
    main()
