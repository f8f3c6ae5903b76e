"""What one device holds for a run: resident weights, mixer states, slots, and fixed buffers for activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from executor.devices.base import Device
from executor.layers.attend import flash_serves
from executor.layers.one_token import OneToken, PositionOnDevice, position_on_device, rows_for
from executor.layers.state import AttentionState, MixerState, new_state
from executor.model import Model
from executor.placed.activations import Activations, new_activations
from executor.shape import MoeFfn
from executor.weights.resident import ResidentStore
from executor.weights.splits import StepKind


@dataclass(slots=True)
class Lane:
    """One device and the layers that live on it."""

    device: Device
    layers: tuple[int, ...]
    store: ResidentStore
    states: dict[int, MixerState]
    on_device: Activations
    on_host: Activations
    flags: torch.Tensor
    """(layers, experts) uint8 on the device: the router's choice, one flag an expert."""
    max_tokens: int
    begin: torch.Tensor
    """(1,) int64 on the device: where the ubatch begins among the pass's tokens."""
    position: PositionOnDevice
    """Where it begins in the context."""
    slots: dict[StepKind, list[torch.Tensor]] = field(default_factory=dict)
    given_ids: dict[int, torch.Tensor] = field(default_factory=dict)
    """A synthetic router's choice for a pass, (max_tokens, n_used) a layer, at a fixed address."""

    @property
    def state_bytes(self) -> int:
        """Device memory of the layers' mixer states (KV caches and others)."""
        return sum(state.n_bytes for state in self.states.values())

    @property
    def fixed_bytes(self) -> int:
        """Device memory of states and activations, which every arm needs alike."""
        given = sum(ids.nbytes for ids in self.given_ids.values())
        return self.state_bytes + self.on_device.n_bytes + self.flags.nbytes + given

    def give_ids(self, layer: int, ids: torch.Tensor) -> torch.Tensor:
        """Keep a layer's choice (n, n_used) for the pass that begins; returns where it lies on the device."""
        if layer not in self.given_ids:
            shape = (self.max_tokens, ids.shape[1])
            self.given_ids[layer] = torch.zeros(shape, dtype=torch.int64, device=self.device.torch_device)
        kept = self.given_ids[layer][: ids.shape[0]]
        kept.copy_(ids)
        return kept

    def set_begin(self, row: int, position: int) -> None:
        """Launched with each ubatch: recorded steps read its place from the device, and so serve every ubatch.

        `row` counts from the pass's first token, `position` from the context's.
        """
        self.begin.fill_(row)
        self.position.set(position)

    def one_token(self, layer: int, position: int) -> OneToken | None:
        """Where one token stands, for a step that is recorded once for many positions; None where each is recorded."""
        state = self.states[layer]
        if not (self.device.replays and isinstance(state, AttentionState) and flash_serves(state.keys)):
            return None
        return OneToken(self.position, rows_for(position, self.max_tokens))

    def given_rows(self, layer: int, n: int) -> torch.Tensor:
        """The synthetic choice (n, n_used) for the ubatch under way."""
        rows = torch.arange(n, device=self.begin.device) + self.begin
        return self.given_ids[layer].index_select(0, rows)

    def reserve_slots(self, kind: StepKind, n_slots: int, n_bytes: int) -> None:
        """Reserve the slots of one kind of step. Once only: steps keep their addresses."""
        if kind not in self.slots:
            self.slots[kind] = [self.device.allocate(n_bytes, f"slot {i} for {kind} tensors") for i in range(n_slots)]


def make_lane(
    model: Model, device: Device, layers: Sequence[int], dtype: torch.dtype, *, max_tokens: int, max_ubatch: int
) -> Lane:
    """Reserve a device's states and buffers for contexts of `max_tokens` and ubatches of `max_ubatch`.

    Slots and resident weights come later: `reserve_slots`, `store.ensure`. Torch's errors where memory runs out.
    """
    store = ResidentStore(model, device, dtype)
    shapes = model.shape.layers
    states = {i: new_state(shapes[i].mixer, max_tokens, device.torch_device, dtype) for i in layers}
    n_experts = max((s.ffn.n_experts for s in shapes if isinstance(s.ffn, MoeFfn)), default=1)
    flags = torch.zeros((len(shapes), n_experts), dtype=torch.uint8, device=device.torch_device)
    on_device = new_activations(model, device, dtype, max_ubatch, host=False)
    on_host = new_activations(model, device, dtype, max_ubatch, host=True)
    begin = torch.zeros(1, dtype=torch.int64, device=device.torch_device)
    position = position_on_device(device.torch_device)
    return Lane(device, tuple(layers), store, states, on_device, on_host, flags, max_tokens, begin, position)
