"""Refuses shapes that no layer could compute, whatever they were read from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from executor.errors import HprofError
from executor.shape import AttentionShape, DeltaNetShape, DenseFfn, Ffn, Mixer, MlaShape, ModelShape, MoeFfn, RopeShape

_MOST_EXPERTS: Final = 65536  # a hundred times what models have; routing draws a number for each
_MOST_TURNS: Final = 1e6


def check_shape(shape: ModelShape, origin: str) -> ModelShape:
    """The same shape; HprofError names the first layer and fact that cannot be."""
    for problem in _outer_problems(shape):
        raise HprofError(f"{origin}: {problem}, which cannot be; correct or fetch it again.")
    for i, layer in enumerate(shape.layers):
        for problem in (*_mixer_problems(layer.mixer), *_ffn_problems(layer.ffn)):
            raise HprofError(f"{origin}: layer {i} has {problem}, which cannot be; correct or fetch it again.")
    return shape


def _outer_problems(shape: ModelShape) -> Iterator[str]:
    if not shape.layers:
        yield "it has no layers"
    if min(shape.n_vocab, shape.hidden, shape.context_length) < 1:
        yield f"it has a vocabulary of {shape.n_vocab} and a width of {shape.hidden}"
    if not 0 < shape.norm_eps < 1:
        yield f"the norms' epsilon is {shape.norm_eps}"


def _mixer_problems(mixer: Mixer) -> Iterator[str]:
    match mixer:
        case AttentionShape():
            if min(mixer.n_heads, mixer.n_kv_heads, mixer.head_dim) < 1 or mixer.n_heads % mixer.n_kv_heads:
                yield f"{mixer.n_heads} query heads over {mixer.n_kv_heads} key heads"
            yield from _rope_problems(mixer.rope, mixer.head_dim)
        case DeltaNetShape():
            if min(mixer.n_key_heads, mixer.n_value_heads) < 1 or mixer.n_value_heads % mixer.n_key_heads:
                yield f"{mixer.n_value_heads} value heads over {mixer.n_key_heads} key heads"
            if min(mixer.key_dim, mixer.value_dim) < 1 or mixer.conv_width < 2:
                yield f"heads of {mixer.key_dim} and {mixer.value_dim} and a convolution over {mixer.conv_width}"
        case MlaShape():
            if min(mixer.n_heads, mixer.kv_lora_rank, mixer.nope_dim, mixer.value_dim) < 1:
                yield f"{mixer.n_heads} heads over latents of {mixer.kv_lora_rank}"
            yield from _rope_problems(mixer.rope, mixer.rope.dims)
    if not isinstance(mixer, DeltaNetShape) and mixer.window is not None and mixer.window < 1:
        yield f"a window of {mixer.window}"


def _rope_problems(rope: RopeShape, head_dim: int) -> Iterator[str]:
    if rope.dims % 2 or not 0 < rope.dims <= head_dim:
        yield f"{rope.dims} rotated dimensions in heads of {head_dim}"
    if rope.theta <= 1 or rope.factor <= 0:
        yield f"a rotation with base {rope.theta:g} and factor {rope.factor:g}"
    if rope.scaling in ("yarn", "llama3") and rope.original_context < 1:
        yield f"{rope.scaling} scaling of a context of {rope.original_context}"
    if rope.scaling == "yarn" and not 0 < rope.beta_slow <= rope.beta_fast <= _MOST_TURNS:
        yield f"yarn scaling between {rope.beta_slow:g} and {rope.beta_fast:g} turns"
    fits = len(rope.factors) == rope.dims // 2 and all(0 < factor < math.inf for factor in rope.factors)
    if rope.factors and not fits:
        yield f"{len(rope.factors)} rotation factors for {rope.dims} rotated dimensions"


def _ffn_problems(ffn: Ffn) -> Iterator[str]:
    match ffn:
        case DenseFfn():
            if ffn.n_ff < 1:
                yield f"an FFN of width {ffn.n_ff}"
        case MoeFfn():
            if not 0 < ffn.n_used <= ffn.n_experts <= _MOST_EXPERTS or ffn.n_ff_expert < 1:
                yield f"{ffn.n_used} of {ffn.n_experts} experts of width {ffn.n_ff_expert}"
