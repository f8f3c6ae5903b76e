"""The weights that stay on a device, uploaded once.

Quantised bytes stay quantised wherever they are kept; a matrix is dequantised when a step asks for it.
Vectors (norms, biases) and routers are kept in the compute dtype.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

from executor.devices.base import Device
from executor.model import Model, TensorInfo
from executor.placement.place import is_movable
from executor.weights.views import in_dtype, rows_view

_ALIGNMENT: Final = 256  # bytes


class ResidentStore:
    """The resident tensors of one device, in arenas reserved up front."""

    def __init__(self, model: Model, device: Device, dtype: torch.dtype) -> None:
        self._model, self._device, self.dtype = model, device, dtype
        self._raw: dict[str, torch.Tensor] = {}
        self._constants: dict[str, torch.Tensor] = {}

    @property
    def tensors(self) -> list[TensorInfo]:
        """What is resident."""
        return [self._model.tensors[name] for name in self._raw]

    @property
    def n_bytes(self) -> int:
        """Device memory of all resident tensors, each from an aligned address."""
        return sum(_aligned(tensor.n_bytes) for tensor in self.tensors)

    def ensure(self, names: Iterable[str]) -> None:
        """Make tensors resident; those that are already cost nothing."""
        missing = [self._model.tensors[name] for name in names if name not in self._raw]
        if not missing:
            return
        sizes = [_aligned(t.n_bytes) for t in missing]
        arena = self._device.allocate(sum(sizes), f"{len(missing)} resident tensors")
        offset = 0
        for tensor, size in zip(missing, sizes, strict=True):
            self._raw[tensor.name] = arena[offset : offset + tensor.n_bytes]
            offset += size
            self._upload(tensor)

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    def raw(self, name: str) -> torch.Tensor:
        """The stored bytes as (..., row_bytes)."""
        return rows_view(self._raw[name], self._model.tensors[name])

    def get(self, name: str) -> torch.Tensor:
        """The tensor in the compute dtype."""
        if name in self._constants:
            return self._constants[name]
        info = self._model.tensors[name]
        return in_dtype(self.raw(name), info, self.dtype)

    def _upload(self, tensor: TensorInfo) -> None:
        if self._device.torch_device.type == "meta":
            return
        staging = self._model.source.mapped(tensor.name)
        if staging is None:
            staging = torch.empty(tensor.n_bytes, dtype=torch.uint8)
            self._model.source.read_into(tensor.name, staging)
        self._raw[tensor.name].copy_(staging)
        if (not is_movable(tensor) and tensor.layer is not None) or len(tensor.shape) == 1:
            self._constants[tensor.name] = in_dtype(self.raw(tensor.name), tensor, self.dtype)


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
