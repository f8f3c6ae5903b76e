"""Parts of blocks that several architectures' files hold, as converters write them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from tests.random_gguf import Shapes, ffn_tensors, model_tensors, write_random_gguf

HIDDEN: Final = 128
HEADS: Final = 4
KV_HEADS: Final = 2
HEAD_DIM: Final = 32
N_FF: Final = 96
EXPERTS: Final = 8
N_FF_EXPERT: Final = 48
KEYS: Final[dict[str, Any]] = {
    "embedding_length": HIDDEN,
    "block_count": 2,
    "feed_forward_length": N_FF,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.key_length": HEAD_DIM,
    "attention.value_length": HEAD_DIM,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 1e4,
    "rope.dimension_count": HEAD_DIM,
}
EXPERT_KEYS: Final[dict[str, Any]] = {
    "expert_count": EXPERTS,
    "expert_used_count": 3,
    "expert_feed_forward_length": N_FF_EXPERT,
}
NORMS: Final[Shapes] = {"attn_norm.weight": (HIDDEN,), "ffn_norm.weight": (HIDDEN,)}
QK_NORMS: Final[Shapes] = {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}
ATTENTION: Final[Shapes] = {
    "attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
    "attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
}
DENSE: Final = ffn_tensors(HIDDEN, N_FF)


def experts() -> Shapes:
    """Router and routed experts."""
    return {"ffn_gate_inp.weight": (EXPERTS, HIDDEN), **ffn_tensors(HIDDEN, N_FF_EXPERT, "_exps", (EXPERTS,))}


def merged(keys: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """A file's keys with some changed (None: left out)."""
    return {key: value for key, value in (keys | changed).items() if value is not None}


def write_plain(
    path: Path, architecture: str, keys: dict[str, Any], vectors: Collection[str] = (), extra: Shapes | None = None
) -> Path:
    """Two blocks as Llama's, of experts where `keys` state them, with some biases and scales and `extra` tensors."""
    block = NORMS | ATTENTION | (experts() if "expert_count" in keys else DENSE) | (extra or {})
    for name in vectors:
        n_scales = EXPERTS if "_exps" in name else 1
        block[name] = (n_scales,) if name.endswith("scale") else block[name.replace(".bias", ".weight")][:1]
    return write_random_gguf(path, architecture, keys, model_tensors(HIDDEN, [block, block]))
