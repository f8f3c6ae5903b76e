"""Gemma 3: windows with a rotation of their own, a norm before and one behind each part, GELU."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from executor.model import AttentionShape, DenseFfn
from executor.models.architectures.attention import read_attention
from executor.models.architectures.base import Architecture, ModelFile, Multipliers
from executor.models.architectures.ffn import read_dense

_LAYERS_OF_27B: Final = 62  # the size whose logits are scaled by the width a head, not by the head's
_WINDOWS_THETA: Final = 10000.0


def _attention(file: ModelFile, layer: int) -> AttentionShape:
    shape = read_attention(file, layer)
    rope = shape.rope
    if shape.window is not None:
        theta = file.fields.number("rope.freq_base_swa", _WINDOWS_THETA, above=1.0)
        rope = replace(rope, theta=theta, scaling="none", factor=1.0)
    is_27b = file.n_layers == _LAYERS_OF_27B
    scale = (file.hidden // shape.n_heads) ** -0.5 if is_27b else None
    return replace(shape, rope=rope, scale=scale, post_norm=True)


def _ffn(file: ModelFile, layer: int) -> DenseFfn:
    return replace(read_dense(file, layer), activation="gelu", post_norm=True)


def _multipliers(file: ModelFile) -> Multipliers:
    cap = file.fields.number("final_logit_softcapping", 0.0, or_zero=True)
    return Multipliers(embedding=math.sqrt(file.hidden), logit_cap=cap or None)


GEMMA = {
    "gemma3": Architecture(
        mixer=_attention, ffn=_ffn, multipliers=_multipliers, qk_norm="always", window_every=6, window_optional=True
    ),
}
