"""Llama 4: three layers of four see a chunk of the context, the fourth all of it and no positions."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from executor.errors import HprofError
from executor.model import AttentionShape, Ffn, TemperatureShape
from executor.models.architectures.attention import has_window, read_attention
from executor.models.architectures.base import Architecture, ModelFile
from executor.models.architectures.ffn import read_dense, read_moe

# llama.cpp's numbers for the architecture (src/models/llama4.cpp), which no key of a file changes
_CHUNK: Final = 8192
_TEMPERATURE: Final = TemperatureShape(length=8192, scale=0.1, offset=1.0)
_NO_ROPE_EVERY: Final = 4
_WITHOUT_QK_NORM: Final = 128  # experts: Maverick does not bring queries and keys to one length, the others do


def read_mixer(file: ModelFile, layer: int) -> AttentionShape:
    """The attention of layer number `layer`."""
    fields = file.fields
    if fields.integer("attention.sliding_window", _CHUNK, low=0) == 0:
        raise HprofError(
            f"{fields.origin}: its key {fields.prefix}attention.sliding_window is 0: attention without chunks, which "
            "neither hprof nor llama.cpp computes for this architecture; use a model without that."
        )
    plain = read_attention(file, layer)
    chunk = _CHUNK if has_window(file, layer, every=4) else None
    if (layer + 1) % _NO_ROPE_EVERY == 0:
        return replace(plain, rope=plain.rope.at_rest(), chunk=chunk, temperature=_TEMPERATURE)
    theta = fields.number("rope.freq_base_swa", plain.rope.theta, above=1.0) if chunk else plain.rope.theta
    has_one_length = fields.integer("expert_count") != _WITHOUT_QK_NORM
    magnitude = 1.0 if has_one_length else plain.rope.attention_factor
    rope = replace(plain.rope, theta=theta, attention_factor=magnitude)
    return replace(plain, rope=rope, chunk=chunk, qk_unit=has_one_length)


def read_layer_ffn(file: ModelFile, layer: int) -> Ffn:
    """Experts in every so many layers; with a step of 0, in none."""
    step = file.fields.integer("interleave_moe_layer_step", low=0)
    return read_moe(file, layer) if step and (layer + 1) % step == 0 else read_dense(file, layer)


LLAMA4 = {
    "llama4": Architecture(
        mixer=read_mixer,
        ffn=read_layer_ffn,
        interleaved_rope=True,
        scoring="sigmoid_topk",
        normalise=False,
        weighs_input=True,
    )
}
