"""Random weights of one layer, for the layers' tests."""

from __future__ import annotations

import zlib

import torch

from executor.model import LayerShape, ModelShape
from executor.models.tensors import layer_shapes


class RandomWeights:
    """`Weights` and `ExpertStack` for one layer: matrices of standard deviation 1 / sqrt(fan in)."""

    def __init__(self, layer: LayerShape, hidden: int, dtype: torch.dtype = torch.float32) -> None:
        shape = ModelShape("test", "llama", 8, hidden, (layer,), 1e-5)
        self.tensors = {name: _random(name, dims).to(dtype) for name, dims in layer_shapes(shape, 0).items()}

    def __call__(self, short_name: str) -> torch.Tensor:
        return self.tensors[short_name]

    def maybe(self, short_name: str) -> torch.Tensor | None:
        return self.tensors.get(short_name)

    def rows(self, short_name: str, ids: torch.Tensor) -> torch.Tensor:
        return self.tensors[short_name][ids]

    def one(self, name: str, expert: int) -> torch.Tensor:
        return self.tensors[name][expert]

    def all(self, name: str, flags: torch.Tensor) -> torch.Tensor:
        return self.tensors[name]

    def chosen(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        return self.tensors[name][ids]

    def to(self, device: torch.device) -> RandomWeights:
        self.tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        return self


def _random(name: str, dims: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    noise = torch.randn(dims, generator=generator)
    return noise / dims[-1] ** 0.5 if len(dims) > 1 else noise * 0.3 + name.endswith("norm.weight")
