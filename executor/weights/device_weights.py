"""Where a step on a device finds its weights: a slot, the expert cache, or resident memory.

Quantised bytes stay quantised wherever they are kept: a step multiplies by them as they are (`stored`), or has a matrix
dequantised. Vectors (norms, biases) and routers are kept in the compute dtype.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

from executor.devices.base import Device
from executor.model import Model, TensorInfo
from executor.placement.place import is_movable
from executor.quants.dispatch import dequantise, dequantise_chosen, dequantise_experts, in_dtype, rows_view
from executor.quants.products import StoredExperts, read_stored
from executor.quants.relaid import relay, resident_layout
from executor.quants.stored import Stored
from executor.weights.transfer_units import TensorLayout, TransferUnit, expert_view

_ALIGNMENT: Final = 256  # bytes


class ResidentStore:
    """The resident tensors of one device, in arenas reserved up front."""

    def __init__(self, model: Model, device: Device, dtype: torch.dtype) -> None:
        self._model, self._device, self.dtype = model, device, dtype
        self._raw: dict[str, torch.Tensor] = {}
        self._layouts: dict[str, str] = {}
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

    def stored(self, name: str) -> Stored:
        """The bytes as (..., row_bytes), in the layout that they lie in."""
        return Stored(rows_view(self._raw[name], self._model.tensors[name]), self._layouts[name])

    def get(self, name: str) -> torch.Tensor:
        """The tensor in the compute dtype."""
        if name in self._constants:
            return self._constants[name]
        return in_dtype(self.stored(name), self._model.tensors[name], self.dtype)

    def _upload(self, tensor: TensorInfo) -> None:
        self._layouts[tensor.name] = tensor.quant
        if self._device.torch_device.type == "meta":
            return
        staging = self._model.source.mapped(tensor.name)
        if staging is None:
            staging = torch.empty(tensor.n_bytes, dtype=torch.uint8)
            self._model.source.read_into(tensor.name, staging)
        self._raw[tensor.name].copy_(staging)
        if (not is_movable(tensor) and tensor.layer is not None) or len(tensor.shape) == 1:
            self._constants[tensor.name] = in_dtype(self.stored(tensor.name), tensor, self.dtype)
        elif read_stored(self._device.torch_device):
            self._layouts[tensor.name] = resident_layout(tensor.quant, tensor.shape[-1])
            relay(self._raw[tensor.name], self._layouts[tensor.name])


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


class StepWeights:
    """`executor.layers.dense.Weights` for one step on a device: a slot's parts first, then the resident ones."""

    def __init__(
        self,
        model: Model,
        store: ResidentStore,
        layer: int | None,
        unit: TransferUnit | None,
        slot: torch.Tensor | None,
    ) -> None:
        self._tensors, self._store = model.tensors, store
        self._prefix = "" if layer is None else f"blk.{layer}."
        self._slot = slot
        self._parts = {part.info.name: part for part in unit.parts} if unit is not None else {}

    def __call__(self, short_name: str) -> torch.Tensor:
        name = self._prefix + short_name
        part = self._parts.get(name)
        if part is None:
            return self._store.get(name)
        return in_dtype(self._in_slot(part), part.info, self._store.dtype)

    def maybe(self, short_name: str) -> torch.Tensor | None:
        return self(short_name) if self._prefix + short_name in self._tensors else None

    def stored(self, short_name: str) -> Stored:
        name = self._prefix + short_name
        part = self._parts.get(name)
        return self._store.stored(name) if part is None else self._in_slot(part)

    def rows(self, short_name: str, ids: torch.Tensor) -> torch.Tensor:
        raw, layout = self._store.stored(self._prefix + short_name)
        return dequantise(raw[ids], layout, self._store.dtype)

    def _in_slot(self, part: TensorLayout) -> Stored:
        assert self._slot is not None
        raw = self._slot[part.offset : part.offset + part.info.n_bytes]
        return Stored(rows_view(raw, part.info), part.info.quant)


class SlotExperts:
    """`ExpertStack` for one MoE step: each projection lies in the slot (or bank), or is resident.

    `place_of` (n_experts,) int32 maps an expert to its place in the buffer; None is the identity.
    """

    def __init__(
        self,
        model: Model,
        store: ResidentStore,
        layer: int,
        unit: TransferUnit | None,
        buffer: torch.Tensor | None,
        place_of: torch.Tensor | None = None,
    ) -> None:
        self._model, self._store, self._layer = model, store, layer
        self._parts = {part.info.short_name: part for part in unit.parts} if unit is not None else {}
        self._buffer, self._place_of = buffer, place_of

    def one(self, name: str, expert: int) -> torch.Tensor:
        (raw, layout), place_of = self._stack(name)
        place = expert if place_of is None else int(place_of[expert])
        return dequantise(raw[place], layout, self._store.dtype)

    def all(self, name: str, flags: torch.Tensor) -> torch.Tensor:
        (raw, layout), place_of = self._stack(name)
        return dequantise_experts(raw, layout, self._store.dtype, flags, place_of)

    def chosen(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        (raw, layout), place_of = self._stack(name)
        return dequantise_chosen(raw, layout, self._store.dtype, ids if place_of is None else place_of[ids])

    def stored(self, gate: str, up: str, down: str) -> StoredExperts:
        of_gate, of_up, of_down = (self._stack(name) for name in (gate, up, down))
        return StoredExperts(of_gate[0], of_up[0], of_down[0], of_gate[1], of_up[1], of_down[1])

    def _stack(self, name: str) -> tuple[Stored, torch.Tensor | None]:
        """A projection's stack, and where in it each expert lies."""
        part = self._parts.get(name)
        if part is not None and self._buffer is not None:
            return Stored(expert_view(self._buffer, part), part.info.quant), self._place_of
        return self._store.stored(f"blk.{self._layer}.{name}"), None
