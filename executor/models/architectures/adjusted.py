"""Architectures whose attention or FFN is the plain one with a field or two set otherwise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from executor.errors import HprofError
from executor.model import AttentionShape, DenseFfn, Ffn, TemperatureShape
from executor.models.architectures.attention import read_attention
from executor.models.architectures.base import (
    ATTENTION_SCALES,
    EXPERT_SCALES,
    FFN_SCALES,
    ROUTER_KEYS,
    Architecture,
    ModelFile,
    Multipliers,
)
from executor.models.architectures.ffn import read_dense, read_moe
from executor.models.architectures.rope import SECTIONS, original_context

# SmolLM3: Llama whose every fourth layer has no positions
_NO_ROPE_EVERY: Final = 4


def _smollm_attention(file: ModelFile, layer: int) -> AttentionShape:
    shape = read_attention(file, layer)
    return replace(shape, rope=shape.rope.at_rest()) if (layer + 1) % _NO_ROPE_EVERY == 0 else shape


_SMOLLM = {"smollm3": Architecture(mixer=_smollm_attention, interleaved_rope=True)}


def _jointly_normed_attention(file: ModelFile, layer: int) -> AttentionShape:
    """With norms over all heads of queries and of keys together."""
    return replace(read_attention(file, layer), qk_norm_joint=True)


# OLMoE; MiniMax-M2, which rotates a part of each head
_JOINTLY_NORMED = {
    "olmoe": Architecture(
        mixer=_jointly_normed_attention, qk_norm="always", normalise=False, requires=("output.weight",)
    ),
    "minimax-m2": Architecture(
        mixer=_jointly_normed_attention,
        qk_norm="always",
        scoring="sigmoid",
        router_keys=("expert_gating_func",),
        requires=("output.weight", "exp_probs_b.bias"),
    ),
}


def _ernie_ffn(file: ModelFile, layer: int) -> Ffn:
    """Dense layers first, then every so many layers one of experts."""
    step = file.fields.integer("interleave_moe_layer_step")
    is_moe = layer >= file.fields.integer("leading_dense_block_count", 0, low=0) and (layer + 1) % step == 0
    return read_moe(file, layer) if is_moe else read_dense(file, layer)


# ERNIE 4.5, dense and of experts
_ERNIE = {
    "ernie4_5": Architecture(interleaved_rope=True),
    "ernie4_5-moe": Architecture(ffn=_ernie_ffn, interleaved_rope=True),
}


def _mistral_attention(file: ModelFile, layer: int) -> AttentionShape:
    """Queries grow with each context of the length that the model was trained for."""
    plain = read_attention(file, layer)
    scale = file.fields.number("attention.temperature_scale", 0.0, or_zero=True)
    return replace(plain, temperature=TemperatureShape(original_context(file), scale)) if scale else plain


# Mistral 3: Llama, with YaRN as the file says it
_MISTRAL = {
    "mistral3": Architecture(
        mixer=_mistral_attention,
        interleaved_rope=True,
        yarn_keys=True,
        ffn_bias=True,
        scaled=(*ATTENTION_SCALES, *FFN_SCALES, *EXPERT_SCALES),
    ),
}


def _granitemoe_attention(file: ModelFile, layer: int) -> AttentionShape:
    scale = file.fields.number("attention.scale", 0.0, or_zero=True)
    return replace(read_attention(file, layer), scale=scale or None)


def _granite_attention(file: ModelFile, layer: int) -> AttentionShape:
    """The same; a dense Granite's file may say that no layer has positions."""
    shape = _granitemoe_attention(file, layer)
    return shape if file.fields.flag("rope.scaling.finetuned", True) else replace(shape, rope=shape.rope.at_rest())


def _granite_multipliers(file: ModelFile) -> Multipliers:
    fields = file.fields
    return Multipliers(
        embedding=fields.number("embedding_scale", 0.0, or_zero=True) or 1.0,
        residual=fields.number("residual_scale", 0.0, or_zero=True) or 1.0,
        logits=1.0 / fields.number("logit_scale"),
    )


# Granite, dense and of experts: Llama with multipliers on embedding, attention, residuals and logits
_GRANITE = {
    "granite": Architecture(
        mixer=_granite_attention, multipliers=_granite_multipliers, interleaved_rope=True, ffn_bias=True
    ),
    "granitemoe": Architecture(
        mixer=_granitemoe_attention, multipliers=_granite_multipliers, interleaved_rope=True, ffn_bias=True
    ),
}


def _glm_attention(file: ModelFile, layer: int) -> AttentionShape:
    if file.fields.has(SECTIONS) and any(file.fields.integers(SECTIONS, 4, low=0, of="sections")):
        raise HprofError(
            f"{file.fields.origin}: its key {file.fields.prefix}{SECTIONS} says that it sees, and such models rotate "
            "other pairs, which hprof does not compute; use --engine llama-bench for this file."
        )
    return replace(read_attention(file, layer), post_norm=True)


def _glm_ffn(file: ModelFile, layer: int) -> DenseFfn:
    return replace(read_dense(file, layer), post_norm=True)


# GLM-4, with a norm behind each part; GLM-4.5
_GLM = {
    "glm4": Architecture(mixer=_glm_attention, ffn=_glm_ffn, interleaved_rope=True),
    "glm4moe": Architecture(
        qk_norm="optional",
        scoring="sigmoid",
        normalise=False,
        router_keys=ROUTER_KEYS,
        leading_dense=True,
        requires=("exp_probs_b.bias",),
    ),
}

_GEMMA_27B_LAYERS: Final = 62  # the size whose logits are scaled by the width a head, not by the head's
_GEMMA_WINDOWS_THETA: Final = 10000.0


def _gemma_attention(file: ModelFile, layer: int) -> AttentionShape:
    """Windows have a rotation of their own."""
    shape = read_attention(file, layer)
    rope = shape.rope
    if shape.window is not None:
        theta = file.fields.number("rope.freq_base_swa", _GEMMA_WINDOWS_THETA, above=1.0)
        rope = replace(rope, theta=theta, scaling="none", factor=1.0)
    is_27b = file.n_layers == _GEMMA_27B_LAYERS
    scale = (file.hidden // shape.n_heads) ** -0.5 if is_27b else None
    return replace(shape, rope=rope, scale=scale, post_norm=True)


def _gemma_ffn(file: ModelFile, layer: int) -> DenseFfn:
    return replace(read_dense(file, layer), activation="gelu", post_norm=True)


def _gemma_multipliers(file: ModelFile) -> Multipliers:
    cap = file.fields.number("final_logit_softcapping", 0.0, or_zero=True)
    return Multipliers(embedding=math.sqrt(file.hidden), logit_cap=cap or None)


# Gemma 3: a norm before and one behind each part, GELU
_GEMMA = {
    "gemma3": Architecture(
        mixer=_gemma_attention,
        ffn=_gemma_ffn,
        multipliers=_gemma_multipliers,
        qk_norm="always",
        window_every=6,
        window_optional=True,
    ),
}

ADJUSTED: Final[dict[str, Architecture]] = {
    **_SMOLLM,
    **_JOINTLY_NORMED,
    **_ERNIE,
    **_MISTRAL,
    **_GRANITE,
    **_GLM,
    **_GEMMA,
}
