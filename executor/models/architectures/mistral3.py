"""Mistral 3: Llama with queries that grow with their position, and YaRN as the file says it."""

from __future__ import annotations

from dataclasses import replace

from executor.model import AttentionShape, TemperatureShape
from executor.models.architectures.attention import read_attention
from executor.models.architectures.base import ATTENTION_SCALES, EXPERT_SCALES, FFN_SCALES, Architecture, ModelFile
from executor.models.architectures.rope import original_context


def _attention(file: ModelFile, layer: int) -> AttentionShape:
    """Queries grow with each context of the length that the model was trained for."""
    plain = read_attention(file, layer)
    scale = file.fields.number("attention.temperature_scale", 0.0, or_zero=True)
    return replace(plain, temperature=TemperatureShape(original_context(file), scale)) if scale else plain


MISTRAL3 = {
    "mistral3": Architecture(
        mixer=_attention,
        interleaved_rope=True,
        yarn_keys=True,
        ffn_bias=True,
        scaled=(*ATTENTION_SCALES, *FFN_SCALES, *EXPERT_SCALES),
    ),
}
