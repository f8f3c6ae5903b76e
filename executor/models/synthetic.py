"""A model that is known by shape only: which quant type each tensor gets, and what bytes.

Weights are seeded, cheap to make, and such that activations stay finite.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from executor import quants
from executor.model import ModelShape, TensorInfo, layer_of, short_name_of
from executor.models.tensors import all_shapes
from executor.quants import quant_type, tensor_bytes

if TYPE_CHECKING:
    import torch

# Small matrices that llama.cpp never quantises.
_ALWAYS_F32: Final = frozenset({"ffn_gate_inp.weight", "ssm_conv1d.weight"})
# llama.cpp's choice where a row is not a whole number of 256-weight blocks (`tensor_type_fallback`).
_SMALL_BLOCK: Final = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "IQ4_XS": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip
# (mean, standard deviation) of vectors, by the end of their names; other vectors and biases are small.
_VECTORS: Final = {
    "norm.weight": (1.0, 0.1),
    "ssm_a": (-1.0, 0.1),  # with the next line: a gated delta net forgets about 5 % a token
    "ssm_dt.bias": (-3.0, 0.5),
}
_SMALL: Final = (0.0, 0.02)


@dataclass(frozen=True, slots=True)
class QuantPlan:
    """The quant types of a synthetic model; norms, biases and routers are F32 whatever it says."""

    weights: str
    experts: str
    embeddings: str  # token_embd and output

    @classmethod
    def uniform(cls, quant: str) -> QuantPlan:
        """All matrices in one type."""
        return cls(quant, quant, quant)

    def of(self, name: str) -> str:
        """The quant type planned for the matrix of this full name."""
        if name in ("token_embd.weight", "output.weight"):
            return self.embeddings
        return self.experts if "_exps." in name else self.weights


@dataclass(frozen=True, slots=True)
class TypesInTurn:
    """Layer after layer has the next of `quants`; what is of no layer has the first."""

    quants: tuple[str, ...]

    def of(self, name: str) -> str:
        """The quant type planned for the matrix of this full name."""
        return self.quants[(layer_of(name) or 0) % len(self.quants)]


class TypeOfTensor(Protocol):
    """What says which type a matrix is stored in: one for all (QuantPlan), one a layer, or a mixture."""

    def of(self, name: str) -> str:
        """The quant type planned for the matrix of this full name."""


def model_tensors(shape: ModelShape, plan: TypeOfTensor) -> dict[str, TensorInfo]:
    """What a synthetic model of this shape consists of."""
    return {name: _planned(name, dims, plan) for name, dims in all_shapes(shape)}


def _planned(name: str, dims: tuple[int, ...], plan: TypeOfTensor) -> TensorInfo:
    short_name = short_name_of(name)
    quant = "F32"
    if len(dims) > 1 and short_name.endswith(".weight") and short_name not in _ALWAYS_F32:
        quant = fitting(plan.of(name), dims[-1])
    return TensorInfo(name, quant, dims, tensor_bytes(quant, dims))


def fitting(quant: str, n_cols: int) -> str:
    """`quant`, or what llama.cpp stores instead where rows of `n_cols` weights do not fill its blocks."""
    for candidate in (quant, _SMALL_BLOCK.get(quant, "F16")):
        if n_cols % quant_type(candidate).block_size == 0:
            return candidate
    return "F16"


class SyntheticSource:
    """A `WeightSource` whose bytes depend on the seed and the tensor's name, quant type and shape alone.

    Matrices have a standard deviation of 1 / sqrt(fan in), so that each keeps the scale of what it multiplies;
    norms lie near 1, biases near 0.
    """

    def __init__(self, tensors: Mapping[str, TensorInfo], seed: int) -> None:
        self._tensors = tensors
        self._seed = seed

    def read_into(self, name: str, out: torch.Tensor) -> None:
        info = self._tensors[name]
        seed = zlib.crc32(name.encode(), self._seed & 0xFFFFFFFF)
        mean, std = _distribution(info)
        quants.fill_random(out, info.quant, std, seed)
        if mean:
            out.view(_float32()).add_(mean)

    def mapped(self, name: str) -> None:
        return None

    def will_need(self, name: str) -> None:
        """Nothing is mapped."""

    def digest(self) -> str:
        facts = [f"{t.name} {t.quant} {t.shape}" for t in self._tensors.values()]
        return hashlib.sha256("\n".join([f"synthetic {self._seed}", *facts]).encode()).hexdigest()[:16]


def _distribution(info: TensorInfo) -> tuple[float, float]:
    for end, distribution in _VECTORS.items():
        if info.name.endswith(end):
            return distribution
    if len(info.shape) == 1 or info.name.endswith(".bias"):
        return _SMALL
    return 0.0, 1.0 / math.sqrt(info.shape[-1])


def _float32() -> torch.dtype:
    import torch

    return torch.float32
