"""Granite, dense and of experts: Llama with multipliers on embedding, attention, residuals and logits."""

from __future__ import annotations

from dataclasses import replace

from executor.errors import HprofError
from executor.model import AttentionShape
from executor.models.architectures.attention import read_attention
from executor.models.architectures.base import Architecture, ModelFile, Multipliers


def _attention(file: ModelFile, layer: int) -> AttentionShape:
    scale = file.fields.number("attention.scale", 0.0, or_zero=True)
    return replace(read_attention(file, layer), scale=scale or None)


def _rotated_attention(file: ModelFile, layer: int) -> AttentionShape:
    """The same; a dense Granite's file may say that nothing is rotated at all."""
    if not file.fields.flag("rope.scaling.finetuned", True):
        raise HprofError(
            f"{file.fields.origin}: its key {file.fields.prefix}rope.scaling.finetuned is false: without rotation, "
            "which hprof does not compute; use --engine llama-bench for this file."
        )
    return _attention(file, layer)


def _multipliers(file: ModelFile) -> Multipliers:
    fields = file.fields
    return Multipliers(
        embedding=fields.number("embedding_scale", 0.0, or_zero=True) or 1.0,
        residual=fields.number("residual_scale", 0.0, or_zero=True) or 1.0,
        logits=1.0 / fields.number("logit_scale"),
    )


GRANITE = {
    "granite": Architecture(mixer=_rotated_attention, multipliers=_multipliers, interleaved_rope=True),
    "granitemoe": Architecture(mixer=_attention, multipliers=_multipliers, interleaved_rope=True),
}
