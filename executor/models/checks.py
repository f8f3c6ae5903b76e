"""Refuses what a model's file states and what no layer could compute.

`Fields` reads values with a type and a range; `check_shape` holds a finished shape to what layers need. Each
refusal is one sentence that names the file and the key.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from executor.errors import HprofError
from executor.model import (
    AttentionShape,
    DeltaNetShape,
    DenseFfn,
    Ffn,
    LayerShape,
    Mixer,
    MlaShape,
    ModelShape,
    MoeFfn,
    RopeShape,
)
from executor.units import LARGEST_COUNT, shortened

_MAX_NUMBER: Final = sys.float_info.max
_MOST_EXPERTS: Final = 65536  # a hundred times what models have; routing draws a number for each
_MOST_TURNS: Final = 1e6
_MOST_TIMES: Final = 1e6  # what any rows, logits or pairs may be multiplied by


@dataclass(frozen=True, slots=True)
class Fields:
    """The values of one file under `prefix` (GGUF: `llama.`; a config: nothing); `origin` names it in messages."""

    values: Mapping[str, Any]
    origin: str
    prefix: str = ""

    def integer(self, key: str, default: int | None = None, low: int = 1) -> int:
        """A whole number from `low` up; HprofError where it is absent (and has no default) or out of range."""
        return self._checked_integer(key, self._value(key, default), low)

    def integers(
        self, key: str, count: int, default: int | None = None, low: int = 1, of: str = "layers"
    ) -> tuple[int, ...]:
        """One whole number each of the layers: the file holds either one for all, or a list of at least `count`."""
        value = self._value(key, default)
        if not isinstance(value, list | tuple):
            return (self._checked_integer(key, value, low),) * count
        if len(value) < count:
            raise self.refusal(key, f"a list of {len(value)}", f"one number for each of {count} {of}")
        return tuple(self._checked_integer(key, item, low) for item in value[:count])

    def number(self, key: str, default: float | None = None, above: float = 0.0, *, or_zero: bool = False) -> float:
        """A finite number greater than `above`, or 0 too where that means that there is none."""
        value = self._value(key, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (above < value <= _MAX_NUMBER or (or_zero and value == 0)):  # nan compares with nothing
            raise self.refusal(key, value, f"a number above {above:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """A truth value; 0 and 1 are taken too."""
        value = self._value(key, default)
        if not isinstance(value, bool | int):
            raise self.refusal(key, value, "true or false")
        return bool(value)

    def flags(self, key: str) -> list[bool]:
        """A list of truth values."""
        value = self._value(key, None)
        if not isinstance(value, list) or not all(isinstance(item, bool | int) for item in value):
            raise self.refusal(key, value, "a list of true and false")
        return [bool(item) for item in value]

    def text(self, key: str, default: str | None = None) -> str:
        """A text; HprofError where it is absent without a `default`."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.refusal(key, value, "a text")
        return value

    def texts(self, key: str, count: int, known: tuple[str, ...]) -> tuple[str, ...]:
        """A list of `count` texts, each one of `known`."""
        value = self._value(key, None)
        if not isinstance(value, list) or len(value) < count or not set(map(str, value)) <= set(known):
            raise self.refusal(key, value, f"a list of {count}, each one of {', '.join(known)}")
        return tuple(value[:count])

    def table(self, key: str) -> Fields:
        """The values in the table under `key`; none where it is absent or null."""
        value = self.values.get(self.prefix + key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.refusal(key, value, "a table")
        return Fields(value, f"{self.origin}: {key}")

    def only(self, keys: tuple[str, ...]) -> Fields:
        """The same without all but these keys' values."""
        names = {self.prefix + key for key in keys}
        return Fields({name: value for name, value in self.values.items() if name in names}, self.origin, self.prefix)

    def has(self, key: str) -> bool:
        """Whether the value is there, and not null."""
        return self.values.get(self.prefix + key) is not None

    def refusal(self, key: str, value: object, wanted: str) -> HprofError:
        """What to raise where the value of `key` cannot be."""
        return HprofError(
            f"{self.origin}: the key {self.prefix}{key} is {shortened(repr(value), 41)}, but must be {wanted}; "
            "the file is damaged or not what it says, fetch or convert it again."
        )

    def _value(self, key: str, default: object) -> Any:
        value = self.values.get(self.prefix + key)
        if value is None:
            value = default
        if value is None:
            raise HprofError(
                f"{self.origin}: the key {self.prefix}{key} is missing, without which the model's shape is not "
                "known; fetch or convert the model again."
            )
        return value

    def _checked_integer(self, key: str, value: object, low: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= LARGEST_COUNT:
            raise self.refusal(key, value, f"a whole number from {low} to {LARGEST_COUNT}")
        return value


def check_shape(shape: ModelShape, origin: str) -> ModelShape:
    """The same shape; HprofError names the first layer and fact that cannot be."""
    for problem in _outer_problems(shape):
        raise HprofError(f"{origin}: {problem}, which cannot be; correct or fetch it again.")
    for i, layer in enumerate(shape.layers):
        for problem in (*_mixer_problems(layer.mixer), *_ffn_problems(layer.ffn), *_residual_problems(layer)):
            raise HprofError(f"{origin}: layer {i} has {problem}, which cannot be; correct or fetch it again.")
    return shape


def _outer_problems(shape: ModelShape) -> Iterator[str]:
    if not shape.layers:
        yield "it has no layers"
    if min(shape.n_vocab, shape.hidden, shape.context_length) < 1:
        yield f"it has a vocabulary of {shape.n_vocab} and a width of {shape.hidden}"
    if not 0 < shape.norm_eps < 1:
        yield f"the norms' epsilon is {shape.norm_eps}"
    for what, times in (("embeddings", shape.embedding_scale), ("logits", shape.logit_scale)):
        if not 0 < times <= _MOST_TIMES:
            yield f"it has {what} times {times:g}"


def _residual_problems(layer: LayerShape) -> Iterator[str]:
    if not 0 < layer.residual_scale <= _MOST_TIMES:
        yield f"additions to the residual stream times {layer.residual_scale:g}"


def _mixer_problems(mixer: Mixer) -> Iterator[str]:
    match mixer:
        case AttentionShape():
            if min(mixer.n_heads, mixer.n_kv_heads, mixer.head_dim) < 1 or mixer.n_heads % mixer.n_kv_heads:
                yield f"{mixer.n_heads} query heads over {mixer.n_kv_heads} key heads"
            if mixer.scale is not None and not 0 < mixer.scale <= _MOST_TIMES:
                yield f"attention logits times {mixer.scale:g}"
            yield from _rope_problems(mixer.rope, mixer.head_dim)
        case DeltaNetShape():
            if min(mixer.n_key_heads, mixer.n_value_heads) < 1 or mixer.n_value_heads % mixer.n_key_heads:
                yield f"{mixer.n_value_heads} value heads over {mixer.n_key_heads} key heads"
            if min(mixer.key_dim, mixer.value_dim) < 1 or mixer.conv_width < 2:
                yield f"heads of {mixer.key_dim} and {mixer.value_dim} and a convolution over {mixer.conv_width}"
        case MlaShape():
            if min(mixer.n_heads, mixer.kv_lora_rank, mixer.nope_dim, mixer.value_dim) < 1:
                yield f"{mixer.n_heads} heads over latents of {mixer.kv_lora_rank}"
            if not 0 < mixer.logit_scale <= _MOST_TIMES:
                yield f"attention logits times {mixer.logit_scale:g}"
            yield from _rope_problems(mixer.rope, mixer.rope.dims)
    if isinstance(mixer, DeltaNetShape):
        return
    if mixer.window is not None and mixer.window < 1:
        yield f"a window of {mixer.window}"
    if mixer.temperature is not None and mixer.temperature.scale > _MOST_TIMES:
        yield f"queries that grow by {mixer.temperature.scale:g}"


def _rope_problems(rope: RopeShape, head_dim: int) -> Iterator[str]:
    if rope.dims % 2 or not 0 <= rope.dims <= head_dim:
        yield f"{rope.dims} rotated dimensions in heads of {head_dim}"
    if rope.theta <= 1 or rope.factor <= 0:
        yield f"a rotation with base {rope.theta:g} and factor {rope.factor:g}"
    if not 0 < rope.attention_factor <= _MOST_TIMES:
        yield f"rotated pairs times {rope.attention_factor:g}"
    if rope.scaling in ("yarn", "llama3") and rope.original_context < 1:
        yield f"{rope.scaling} scaling of a context of {rope.original_context}"
    if rope.scaling == "yarn" and not 0 < rope.beta_slow <= rope.beta_fast <= _MOST_TURNS:
        yield f"yarn scaling between {rope.beta_slow:g} and {rope.beta_fast:g} turns"
    for factors in (rope.factors, rope.long_factors):
        fits = len(factors) == rope.dims // 2 and all(0 < factor < math.inf for factor in factors)
        if factors and not fits:
            yield f"{len(factors)} rotation factors for {rope.dims} rotated dimensions"


def _ffn_problems(ffn: Ffn) -> Iterator[str]:
    match ffn:
        case DenseFfn():
            if ffn.n_ff < 1:
                yield f"an FFN of width {ffn.n_ff}"
        case MoeFfn():
            if not 0 < ffn.n_used <= ffn.n_experts <= _MOST_EXPERTS or ffn.n_ff_expert < 1:
                yield f"{ffn.n_used} of {ffn.n_experts} experts of width {ffn.n_ff_expert}"
            yield from _group_problems(ffn)


def _group_problems(moe: MoeFfn) -> Iterator[str]:
    """Groups are scored by their two best experts, and some are left out of each token's choice."""
    if moe.n_groups == 1:
        return
    each = moe.n_experts // moe.n_groups
    if moe.n_experts % moe.n_groups or each < 2 or not 0 < moe.n_groups_used < moe.n_groups:
        yield f"{moe.n_groups_used} of {moe.n_groups} groups of its {moe.n_experts} experts"
    elif moe.n_used > each * moe.n_groups_used:
        yield f"{moe.n_used} experts chosen out of {moe.n_groups_used} groups of {each}"
