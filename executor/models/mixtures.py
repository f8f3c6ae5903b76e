"""llama.cpp's mixtures of quant types, such as Q4_K_M: which tensor of a model gets which type.

After `llama_tensor_get_type_impl` in llama.cpp's src/llama-quant.cpp (November 2026), without an importance matrix.
Rows that do not fill a type's blocks fall back as every synthetic tensor's do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from executor.model import ModelShape, MoeFfn, layer_of, short_name_of
from executor.models.tensors import all_shapes

# attention matrices that weigh as `attn_v` does: llama.cpp's category_is_attn_v
_LIKE_VALUES: Final = ("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight")
_OF_8_EXPERTS: Final = 8  # Mixtral's number, for which llama.cpp keeps attention in more bits
_MANY_LAYERS: Final = (("llama", "qwen2"), 80)  # what llama.cpp calls a 70B model


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor stands among its kind: the `index`-th of `count`."""

    index: int
    count: int

    @property
    def has_more_bits(self) -> bool:
        """llama.cpp's use_more_bits: the first and the last eighth, and every third between."""
        eighth = self.count // 8
        return self.index < eighth or self.index >= 7 * self.count // 8 or (self.index - eighth) % 3 == 2

    def is_in_first(self, divisor: int) -> bool:
        return self.index < self.count // divisor


Rule = Callable[[_Place], str]


def _fixed(quant: str, _place: _Place) -> str:
    return quant


def _where_more_bits(base: str, place: _Place) -> str:
    return "Q6_K" if place.has_more_bits else base


@dataclass(frozen=True, slots=True)
class _Mixture:
    """The type of most matrices, and what llama.cpp does with those that lose most by few bits."""

    base: str
    values: Rule
    down: Rule
    output: str  # attn_output.weight
    of_8_experts: str  # the same, of a model of eight experts


_MIXTURES: Final[Mapping[str, _Mixture]] = {
    "Q3_K_S": _Mixture("Q3_K", partial(_fixed, "Q3_K"), partial(_fixed, "Q3_K"), "Q3_K", "Q5_K"),
    "Q3_K_M": _Mixture(
        "Q3_K",
        lambda place: "Q5_K" if place.index < 2 else "Q4_K",
        lambda place: "Q5_K" if place.is_in_first(16) else "Q4_K",
        *("Q4_K", "Q5_K"),
    ),
    "Q3_K_L": _Mixture("Q3_K", partial(_fixed, "Q5_K"), partial(_fixed, "Q5_K"), "Q5_K", "Q3_K"),
    "Q4_K_S": _Mixture(
        "Q4_K",
        lambda place: "Q5_K" if place.index < 4 else "Q4_K",
        lambda place: "Q5_K" if place.is_in_first(8) else "Q4_K",
        *("Q4_K", "Q5_K"),
    ),
    "Q4_K_M": _Mixture("Q4_K", partial(_where_more_bits, "Q4_K"), partial(_where_more_bits, "Q4_K"), "Q4_K", "Q5_K"),
    "Q5_K_S": _Mixture("Q5_K", partial(_fixed, "Q5_K"), partial(_fixed, "Q5_K"), "Q5_K", "Q5_K"),
    "Q5_K_M": _Mixture("Q5_K", partial(_where_more_bits, "Q5_K"), partial(_where_more_bits, "Q5_K"), "Q5_K", "Q5_K"),
}
MIXTURE_NAMES: Final = tuple(_MIXTURES)


@dataclass(frozen=True, slots=True)
class MixturePlan:
    """A mixture laid over one model's tensors."""

    shape: ModelShape
    mixture: str  # one of MIXTURE_NAMES
    _values: Mapping[str, _Place] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        names = [name for name, _ in all_shapes(self.shape) if short_name_of(name) in _LIKE_VALUES]
        places = {name: _Place(index, len(names)) for index, name in enumerate(names)}
        object.__setattr__(self, "_values", places)

    def of(self, name: str) -> str:
        """The quant type of the matrix of this full name."""
        mixture, short_name = _MIXTURES[self.mixture], short_name_of(name)
        has_8_experts = self._n_experts == _OF_8_EXPERTS
        if name == "output.weight" or (name == "token_embd.weight" and self.shape.tied_embeddings):
            return "Q6_K"
        if name in self._values:
            return "Q8_0" if has_8_experts else self._values_type(mixture, name)
        if short_name == "attn_k.weight" and has_8_experts:
            return "Q8_0"
        if "ffn_down" in short_name:
            return mixture.down(_Place(layer_of(name) or 0, len(self.shape.layers)))
        if short_name == "attn_output.weight":
            return mixture.of_8_experts if has_8_experts else mixture.output
        return mixture.base

    def _values_type(self, mixture: _Mixture, name: str) -> str:
        quant = mixture.values(self._values[name])
        architectures, n_layers = _MANY_LAYERS
        is_large = self.shape.architecture in architectures and len(self.shape.layers) == n_layers
        return "Q5_K" if is_large and quant in ("Q3_K", "Q4_K") else quant

    @property
    def _n_experts(self) -> int:
        return max((layer.ffn.n_experts for layer in self.shape.layers if isinstance(layer.ffn, MoeFfn)), default=0)
