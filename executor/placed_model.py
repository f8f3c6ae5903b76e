"""A model where it lies from pass to pass: one shard a device, the transfer units in host memory, and who routes.

A `DeviceShard` holds a device's layers: resident weights, mixer states, slots and the fixed buffers that a ubatch
lies in. Steps work on these buffers in place, so nothing is allocated between steps and a device may replay their
launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from executor.devices.base import Device
from executor.host.steps import HostWeights
from executor.layers.attention_kernels import OneToken, PositionOnDevice, flash_serves, position_on_device, rows_for
from executor.layers.router import Routed
from executor.layers.state import AttentionState, MixerState, new_state
from executor.model import LayerShape, Model, MoeFfn, TensorInfo
from executor.placement.place import Placement
from executor.token_report import TokenReport, report_bytes, token_report
from executor.weights.device_weights import ResidentStore
from executor.weights.transfer_units import StepKind, TransferUnit, step_kind

if TYPE_CHECKING:
    from executor.routing.routers import Routing


@dataclass(slots=True)
class Activations:
    """A ubatch on its way through the layers; rows are tokens. On the device, or (pinned) on the host."""

    x: torch.Tensor  # (n, hidden), the residual stream
    choice: torch.Tensor  # (n_bytes,) uint8, what `routed` and `sent` see parts of
    added: torch.Tensor  # (n, hidden), what routed experts add
    shared: torch.Tensor  # (n, hidden), what the shared expert adds
    token: torch.Tensor  # (1,) int64, the sampled token
    _rows: dict[int, Activations] = field(default_factory=dict, repr=False)
    _routed: dict[int, tuple[Routed, torch.Tensor]] = field(default_factory=dict, repr=False)

    @property
    def n_bytes(self) -> int:
        """Memory of all buffers but the token's."""
        buffers = (self.x, self.choice, self.added, self.shared)
        return sum(buffer.nbytes for buffer in buffers)

    @property
    def h(self) -> torch.Tensor:
        """(n, hidden), normed for the experts."""
        return self.choice[: self.x.nbytes].view(self.x.dtype).view(self.x.shape)

    def rows(self, n: int) -> Activations:
        """Views of the first n rows."""
        if n not in self._rows:
            self._rows[n] = Activations(self.x[:n], self.choice, self.added[:n], self.shared[:n], self.token)
        return self._rows[n]

    def routed(self, n_used: int) -> Routed:
        """The rows as the experts take them, where each chooses `n_used`."""
        return self._parts(n_used)[0]

    def sent(self, n_used: int) -> torch.Tensor:
        """All of that as the bytes of one copy, (n_bytes,) uint8."""
        return self._parts(n_used)[1]

    def _parts(self, n_used: int) -> tuple[Routed, torch.Tensor]:
        if n_used not in self._routed:
            n = self.x.shape[0]
            at_ids = self.x.nbytes + -self.x.nbytes % torch.int64.itemsize
            at_weights = at_ids + n * n_used * torch.int64.itemsize
            end = at_weights + n * n_used * torch.float32.itemsize
            ids = self.choice[at_ids:at_weights].view(torch.int64).view(n, n_used)
            weights = self.choice[at_weights:end].view(torch.float32).view(n, n_used)
            self._routed[n_used] = Routed(self.h, ids, weights), self.choice[:end]
        return self._routed[n_used]


def new_activations(
    model: Model, device: Device, dtype: torch.dtype, n: int, token: torch.Tensor | None = None, *, host: bool
) -> Activations:
    """Zeroed buffers for ubatches of up to `n` tokens, on the device or (`host`) in its pinned host memory.

    A model without experts gets rows for none. `token` (1,) int64 is where the sampled one lies, if not in a new place.
    """

    def buffer(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        if not host:
            return torch.zeros(shape, dtype=dtype, device=device.torch_device)
        n_bytes = torch.Size(shape).numel() * dtype.itemsize
        return device.host_slab(n_bytes, pinned=True).view(dtype).view(shape)

    moe = [layer.moe for layer in model.shape.layers if layer.moe is not None]
    n_moe = n if moe else 0
    n_shared = n if any(ffn.n_ff_shared for ffn in moe) else 0
    n_used = max((ffn.n_used for ffn in moe), default=0)
    hidden = model.shape.hidden
    one = hidden * dtype.itemsize + n_used * (torch.int64.itemsize + torch.float32.itemsize)
    padding = torch.int64.itemsize  # at most, between rows of an odd width and whole numbers
    return Activations(
        x=buffer(dtype, n, hidden),
        choice=buffer(torch.uint8, n_moe * one + padding if n_moe else 0),
        added=buffer(dtype, n_moe, hidden),
        shared=buffer(dtype, n_shared, hidden),
        token=buffer(torch.int64, 1) if token is None else token,
    )


@dataclass(slots=True)
class DeviceShard:
    """One device and the layers that live on it."""

    device: Device
    layers: tuple[int, ...]
    store: ResidentStore
    states: dict[int, MixerState]
    on_device: Activations
    on_host: Activations
    report: TokenReport
    """What the host wants to know of a decoded token; the router's choice and the token of every ubatch lie there."""
    max_tokens: int
    begin: torch.Tensor
    """(1,) int64 on the device: where the ubatch begins among the pass's tokens."""
    position: PositionOnDevice
    """Where it begins in the context."""
    slots: dict[StepKind, list[torch.Tensor]] = field(default_factory=dict)
    given_ids: dict[int, torch.Tensor] = field(default_factory=dict)
    """A synthetic router's choice for a pass, (max_tokens, n_used) a layer, at a fixed address."""
    has_no_sums: bool = False
    """Whether the first of the host's rows of `added` is known to be zero."""

    @property
    def flags(self) -> torch.Tensor:
        """(layers, experts) uint8 on the device: the router's choice, how many rows use each expert."""
        return self.report.flags

    @property
    def state_bytes(self) -> int:
        """Device memory of the layers' mixer states (KV caches and others)."""
        return sum(state.n_bytes for state in self.states.values())

    @property
    def fixed_bytes(self) -> int:
        """Device memory of states and activations, which every arm needs alike."""
        given = sum(ids.nbytes for ids in self.given_ids.values())
        return self.state_bytes + self.on_device.n_bytes + self.report.n_bytes + given

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

    def skip_rows(self, n: int) -> None:
        """Launched where the first `n` rows of the ubatch under way are dropped: those that are left begin later."""
        self.begin.add_(n)

    def advance(self) -> None:
        """The same for the token after the one before."""
        self.begin.add_(1)
        self.position.advance()

    def one_token(self, layer: int, position: int) -> OneToken | None:
        """Where one token stands, for a step that is recorded once for many positions; None where each is recorded."""
        state = self.states[layer]
        if not (self.device.replays and isinstance(state, AttentionState) and flash_serves(state.keys)):
            return None
        n_rows = rows_for(position, self.max_tokens)
        if state.chunk is not None and n_rows > state.chunk:
            return None  # which rows are seen changes with the position
        return OneToken(self.position, n_rows)

    def given_rows(self, layer: int, n: int) -> torch.Tensor:
        """The synthetic choice (n, n_used) for the ubatch under way."""
        rows = torch.arange(n, device=self.begin.device) + self.begin
        return self.given_ids[layer].index_select(0, rows)

    def reserve_slots(self, kind: StepKind, n_slots: int, n_bytes: int) -> None:
        """Reserve the slots of one kind of step. Once only: steps keep their addresses."""
        if kind not in self.slots:
            self.slots[kind] = [self.device.allocate(n_bytes, f"slot {i} for {kind} tensors") for i in range(n_slots)]


def make_device_shard(
    model: Model, device: Device, layers: Sequence[int], dtype: torch.dtype, *, max_tokens: int, max_ubatch: int
) -> DeviceShard:
    """Reserve a device's states and buffers for contexts of `max_tokens` and ubatches of `max_ubatch`.

    Slots and resident weights come later: `reserve_slots`, `store.ensure`. Torch's errors where memory runs out.
    """
    store = ResidentStore(model, device, dtype)
    shapes = model.shape.layers
    states = {i: new_state(shapes[i].mixer, max_tokens, device.torch_device, dtype) for i in layers}
    raw = torch.zeros(report_bytes(model.shape), dtype=torch.uint8, device=device.torch_device)
    report = token_report(model.shape, raw)
    on_device = new_activations(model, device, dtype, max_ubatch, report.token, host=False)
    on_host = new_activations(model, device, dtype, max_ubatch, host=True)
    begin = torch.zeros(1, dtype=torch.int64, device=device.torch_device)
    position = position_on_device(device.torch_device)
    return DeviceShard(device, tuple(layers), store, states, on_device, on_host, report, max_tokens, begin, position)


@dataclass(slots=True)
class PlacedModel:
    """One model, placed. `routing` None means that the model's own router decides."""

    model: Model
    shards: Sequence[DeviceShard]
    shard_of: Sequence[int]  # each layer's shard and, last, the output's
    units: Sequence[TransferUnit]
    host: HostWeights
    routing: Routing | None
    dtype: torch.dtype
    seed: int
    prompt: Sequence[int] | None = None
    """Tokens that every prompt repeats; None: seeded random ones, new in each repetition."""
    tensors_of: dict[tuple[int, StepKind], list[TensorInfo]] = field(init=False, repr=False)
    """What each layer's step reads, resident or not."""
    unit_of: dict[tuple[int, StepKind], TransferUnit] = field(init=False, repr=False)
    """What each layer's step streams, where it does."""

    def __post_init__(self) -> None:
        self.tensors_of = {}
        for tensor in self.model.tensors.values():
            if tensor.layer is not None:
                kind = step_kind(tensor, self.layers[tensor.layer])
                self.tensors_of.setdefault((tensor.layer, kind), []).append(tensor)
        self.unit_of = {(unit.layer, unit.what): unit for unit in self.units}

    @property
    def is_simulated(self) -> bool:
        """Whether nothing is computed: no logits, no tokens, no router to read."""
        return self.shards[0].device.kind == "sim"

    @property
    def layers(self) -> tuple[LayerShape, ...]:
        """The model's layers, in order."""
        return self.model.shape.layers

    def moe(self, layer: int) -> MoeFfn | None:
        """The layer's MoE part, None for a dense layer."""
        return self.layers[layer].moe

    def shard(self, layer: int) -> DeviceShard:
        """The shard that a layer lives on."""
        return self.shards[self.shard_of[layer]]

    def tensors(self, layer: int, kind: StepKind) -> list[TensorInfo]:
        """The tensors that a step reads."""
        return self.tensors_of.get((layer, kind), [])

    def prompt_ids(self, token_set: int, n_tokens: int) -> torch.Tensor:
        """The prompt (n_tokens,) int64: the same for every arm in passes of one `PassJob.token_set`."""
        if self.prompt:
            given = torch.tensor(self.prompt, dtype=torch.int64)
            return given.repeat(-(-n_tokens // given.numel()))[:n_tokens]
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + token_set)
        return torch.randint(self.model.shape.n_vocab, (n_tokens,), generator=generator)

    def units_of(self, placement: Placement) -> list[TransferUnit]:
        """The units whose tensors a placement has in host memory."""
        return [unit for unit in self.units if placement.is_host(unit.parts[0].info.name)]

    def with_units(self, units: Sequence[TransferUnit]) -> PlacedModel:
        """The same with another set of streamed units (the `full` arm streams none)."""
        return replace(self, units=units)
