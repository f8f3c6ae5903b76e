"""Weights for a model that is known by shape only: seeded, cheap, and such that activations stay finite."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from executor import quants
from executor.model import TensorInfo

if TYPE_CHECKING:
    import torch

# (mean, standard deviation) of vectors, by the end of their names; other vectors and biases are small.
_VECTORS: Final = {
    "norm.weight": (1.0, 0.1),
    "ssm_a": (-1.0, 0.1),  # with the next line: a gated delta net forgets about 5 % a token
    "ssm_dt.bias": (-3.0, 0.5),
}
_SMALL: Final = (0.0, 0.02)


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
