"""Random weights of one layer, for the layers' tests."""

from __future__ import annotations

import zlib

import torch

from executor.model import LayerShape, ModelShape
from executor.models.tensors import layer_shapes
from executor.reference import KeptWeights


class RandomWeights(KeptWeights):
    """One layer's: matrices of standard deviation 1 / sqrt(fan in)."""

    def __init__(self, layer: LayerShape, hidden: int, dtype: torch.dtype = torch.float32) -> None:
        shape = ModelShape("test", "llama", 8, hidden, (layer,), 1e-5)
        super().__init__({name: _random(name, dims).to(dtype) for name, dims in layer_shapes(shape, 0).items()})

    def to(self, device: torch.device) -> RandomWeights:
        self.tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        return self


def _random(name: str, dims: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    noise = torch.randn(dims, generator=generator)
    return noise / dims[-1] ** 0.5 if len(dims) > 1 else noise * 0.3 + name.endswith("norm.weight")
