"""What transformers' code for a model type knows and its configs do not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

_UNGROUPED: Final = "experts are chosen among all, not within chosen groups"


@dataclass(frozen=True, slots=True)
class Family:
    """One model type. Defaults are those of a plain decoder with grouped-query attention."""

    architecture: str  # GGUF's name, which decides the tensors' names
    bias: bool = False
    qk_norm: bool = False
    has_mla: bool = False
    output_gate: bool = False
    rotated: float = 1.0  # share of a head, where the config does not say
    other_kind: str | None = None  # layers are of this kind but for each `full_every`-th
    full_every: int = 1
    scoring: Literal["softmax", "sigmoid", "softmax_topk"] = "softmax"
    normalise: bool = True
    is_gpt_oss: bool = False
    notes: tuple[str, ...] = ()


def _qwen_next(architecture: str) -> Family:
    return Family(
        architecture, qk_norm=True, output_gate=True, rotated=0.25, other_kind="linear_attention", full_every=4
    )


FAMILIES: Final[dict[str, Family]] = {
    "llama": Family("llama"),
    "mistral": Family("llama"),
    "mixtral": Family("llama"),
    "qwen2": Family("qwen2", bias=True),
    "qwen2_moe": Family("qwen2moe", bias=True, normalise=False),
    "qwen3": Family("qwen3", qk_norm=True),
    "qwen3_moe": Family("qwen3moe", qk_norm=True),
    "qwen3_next": _qwen_next("qwen35moe"),
    "qwen3_5": _qwen_next("qwen35"),
    "qwen3_5_moe": _qwen_next("qwen35moe"),
    "gpt_oss": Family(
        "gpt-oss",
        bias=True,
        other_kind="sliding_attention",
        full_every=2,
        scoring="softmax_topk",
        normalise=False,
        is_gpt_oss=True,
    ),
    "glm4_moe": Family("glm4moe", rotated=0.5, scoring="sigmoid"),
    "deepseek_v2": Family("deepseek2", has_mla=True, normalise=False, notes=(_UNGROUPED,)),
    "deepseek_v3": Family("deepseek2", has_mla=True, scoring="sigmoid", notes=(_UNGROUPED,)),
}
