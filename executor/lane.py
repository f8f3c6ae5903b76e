"""What one device holds for a run: resident weights, mixer states, slots, and small exchange buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from executor.devices.base import Device
from executor.layers.state import MixerState, new_state
from executor.model import Model
from executor.shape import MoeFfn
from executor.weights import ResidentStore

_NO_EXPERTS = 1


@dataclass(slots=True)
class Exchange:
    """Fixed buffers through which activations cross the bus, a pair (device, host) each; rows are tokens."""

    hidden: tuple[torch.Tensor, torch.Tensor]
    result: tuple[torch.Tensor, torch.Tensor]
    ids: tuple[torch.Tensor, torch.Tensor]
    weights: tuple[torch.Tensor, torch.Tensor]
    token: tuple[torch.Tensor, torch.Tensor]


@dataclass(slots=True)
class Lane:
    """One device and the layers that live on it."""

    device: Device
    layers: tuple[int, ...]
    store: ResidentStore
    states: dict[int, MixerState]
    exchange: Exchange
    flags: torch.Tensor
    """(layers, experts) uint8 on the device: the router's choice, one flag an expert."""
    slots: list[torch.Tensor] = field(default_factory=list)

    @property
    def state_bytes(self) -> int:
        return sum(state.n_bytes for state in self.states.values())

    def reserve_slots(self, n_slots: int, n_bytes: int) -> None:
        """Make sure that `n_slots` slots of at least `n_bytes` exist; larger needs replace what is there."""
        if len(self.slots) >= n_slots and (not self.slots or self.slots[0].numel() >= n_bytes):
            return
        for slot in self.slots:
            self.device.release(slot)
        n_slots = max(n_slots, len(self.slots))
        self.slots = []
        self.slots = [self.device.allocate(n_bytes, f"slot {i}") for i in range(n_slots)]


def make_lane(
    model: Model, device: Device, layers: Sequence[int], dtype: torch.dtype, *, max_tokens: int, max_ubatch: int
) -> Lane:
    """Reserve a device's states and buffers for contexts of `max_tokens` and ubatches of `max_ubatch`."""
    store = ResidentStore(model, device, dtype)
    shapes = model.shape.layers
    states = {i: new_state(shapes[i].mixer, max_tokens, device.torch_device, dtype) for i in layers}
    n_experts = max((s.ffn.n_experts for s in shapes if isinstance(s.ffn, MoeFfn)), default=_NO_EXPERTS)
    flags = torch.zeros((len(shapes), n_experts), dtype=torch.uint8, device=device.torch_device)
    return Lane(device, tuple(layers), store, states, _exchange(model, device, dtype, max_ubatch), flags)


def _exchange(model: Model, device: Device, dtype: torch.dtype, n: int) -> Exchange:
    k = max((s.ffn.n_used for s in model.shape.layers if isinstance(s.ffn, MoeFfn)), default=1)
    hidden = model.shape.hidden
    return Exchange(
        hidden=_pair(device, (n, hidden), dtype),
        result=_pair(device, (n, hidden), dtype),
        ids=_pair(device, (n, k), torch.int64),
        weights=_pair(device, (n, k), dtype),
        token=_pair(device, (1,), torch.int64),
    )


def _pair(device: Device, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    n_bytes = torch.Size(shape).numel() * dtype.itemsize
    host = device.host_slab(n_bytes, pinned=True).view(dtype).view(shape)
    return torch.zeros(shape, dtype=dtype, device=device.torch_device), host
