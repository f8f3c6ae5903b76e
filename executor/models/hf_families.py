"""What transformers' code for a model type knows and its configs do not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from executor.model import Scoring


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """One model type. Defaults are those of a plain decoder with grouped-query attention."""

    architecture: str  # GGUF's name, which decides the tensors' names
    experts: str | None = None  # the key of their number; None: all layers are dense
    expert_width: str = "moe_intermediate_size"
    bias: bool = False
    qk_norm: bool = False
    qk_norm_joint: bool = False  # over all heads together
    may_omit_kv_heads: bool = False  # there are then as many as query heads
    has_mla: bool = False
    output_gate: bool = False
    rotated: float = 1.0  # share of a head, where the config does not say
    unscaled: tuple[str, ...] = ()  # rules of rope scaling that are left out; a note says so
    other_kind: str | None = None  # layers are of this kind but for each `full_every`-th
    full_every: int = 1
    slides: bool = False  # a sliding window, where one is stated, is that of all layers
    scoring: Scoring = "softmax"
    normalise: bool = True
    is_gpt_oss: bool = False
    is_gemma: bool = False
    windows_theta: float | None = None  # base of the rotation in layers with a window, which is not scaled
    has_multipliers: bool = False  # Granite's
    defaults: Mapping[str, Any] = field(default_factory=dict)  # what published configs leave out
    notes: tuple[str, ...] = ()


def _qwen_next(architecture: str, experts: str | None = None) -> ModelFamily:
    return ModelFamily(
        architecture,
        experts=experts,
        qk_norm=True,
        output_gate=True,
        rotated=0.25,
        other_kind="linear_attention",
        full_every=4,
    )


def _gemma(architecture: str, full_every: int, notes: tuple[str, ...] = (), **defaults: Any) -> ModelFamily:
    return ModelFamily(
        architecture,
        qk_norm=architecture == "gemma3",
        other_kind="sliding_attention",
        full_every=full_every,
        is_gemma=True,
        windows_theta=10000.0 if architecture == "gemma3" else None,
        defaults={"tie_word_embeddings": True, **defaults},
        notes=notes,
    )


_QWEN2: Final = ModelFamily("qwen2", bias=True)
_QWEN3: Final = ModelFamily("qwen3", qk_norm=True, defaults={"head_dim": 128})
_QWEN3_MOE: Final = ModelFamily("qwen3moe", experts="num_experts", qk_norm=True)
_GLM4_MOE: Final = ModelFamily("glm4moe", experts="n_routed_experts", rotated=0.5, scoring="sigmoid")
_DEEPSEEK_V3: Final = ModelFamily("deepseek2", experts="n_routed_experts", has_mla=True, scoring="sigmoid")

MODEL_FAMILIES: Final[dict[str, ModelFamily]] = {
    "llama": ModelFamily("llama", may_omit_kv_heads=True),
    "mistral": ModelFamily("llama", slides=True),
    "mixtral": ModelFamily("llama", experts="num_local_experts", expert_width="intermediate_size", slides=True),
    "qwen2": _QWEN2,
    "qwen2_moe": ModelFamily("qwen2moe", experts="num_experts", bias=True, normalise=False),
    "qwen2_vl": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3_MOE,
    "qwen3_next": _qwen_next("qwen3next", "num_experts"),
    "qwen3_5": _qwen_next("qwen35"),
    "qwen3_5_moe": _qwen_next("qwen35moe", "num_experts"),
    "gpt_oss": ModelFamily(
        "gpt-oss",
        experts="num_local_experts",
        expert_width="intermediate_size",
        bias=True,
        other_kind="sliding_attention",
        full_every=2,
        scoring="softmax_topk",
        normalise=False,
        is_gpt_oss=True,
    ),
    "glm4_moe": _GLM4_MOE,
    "glm4v_moe": _GLM4_MOE,
    "deepseek_v2": ModelFamily(
        "deepseek2",
        experts="n_routed_experts",
        has_mla=True,
        normalise=False,
        notes=("groups of experts, where there are any, are scored by their two best, not by their best",),
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "phi3": ModelFamily(
        "phi3",
        unscaled=("longrope", "su", "yarn"),
        slides=True,
        notes=("q, k and v, and gate and up, are stored apart; rotation is not scaled",),
    ),
    "granitemoe": ModelFamily(
        "granitemoe",
        experts="num_local_experts",
        expert_width="intermediate_size",
        has_multipliers=True,
    ),
    "olmoe": ModelFamily(
        "olmoe",
        experts="num_experts",
        expert_width="intermediate_size",
        qk_norm=True,
        qk_norm_joint=True,
        normalise=False,
    ),
    "gemma2": _gemma("gemma2", 2, ("no soft-capping of attention's logits",), head_dim=256),
    "gemma3": _gemma(
        "gemma3",
        6,
        vocab_size=262_208,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=256,
        sliding_window=4096,
        rope_theta=1e6,
    ),
}
