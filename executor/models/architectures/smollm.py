"""SmolLM3: Llama whose every fourth layer has no positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from executor.model import AttentionShape
from executor.models.architectures.attention import read_attention
from executor.models.architectures.base import Architecture, ModelFile

_NO_ROPE_EVERY: Final = 4


def _attention(file: ModelFile, layer: int) -> AttentionShape:
    shape = read_attention(file, layer)
    return replace(shape, rope=shape.rope.at_rest()) if (layer + 1) % _NO_ROPE_EVERY == 0 else shape


SMOLLM = {"smollm3": Architecture(mixer=_attention, interleaved_rope=True)}
