"""Granite, dense and of experts: Llama with multipliers on embedding, attention, residuals and logits."""

from __future__ import annotations

from dataclasses import replace

from executor.model import AttentionShape
from executor.models.architectures.attention import read_attention
from executor.models.architectures.base import Architecture, ModelFile, Multipliers


def _attention(file: ModelFile, layer: int) -> AttentionShape:
    scale = file.fields.number("attention.scale", 0.0, or_zero=True)
    return replace(read_attention(file, layer), scale=scale or None)


def _dense_attention(file: ModelFile, layer: int) -> AttentionShape:
    """The same; a dense Granite's file may say that no layer has positions."""
    shape = _attention(file, layer)
    return shape if file.fields.flag("rope.scaling.finetuned", True) else replace(shape, rope=shape.rope.at_rest())


def _multipliers(file: ModelFile) -> Multipliers:
    fields = file.fields
    return Multipliers(
        embedding=fields.number("embedding_scale", 0.0, or_zero=True) or 1.0,
        residual=fields.number("residual_scale", 0.0, or_zero=True) or 1.0,
        logits=1.0 / fields.number("logit_scale"),
    )


GRANITE = {
    "granite": Architecture(mixer=_dense_attention, multipliers=_multipliers, interleaved_rope=True, ffn_bias=True),
    "granitemoe": Architecture(mixer=_attention, multipliers=_multipliers, interleaved_rope=True, ffn_bias=True),
}
