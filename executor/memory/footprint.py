"""What a session will hold in memory, told by opening it on the `sim` device, whose tensors have no bytes.

The engine's own code decides what is reserved. Counted by a rule of its own is only what grows with the context,
which `sim` does not size, and what a step needs for a while (`memory.scratch`). All of it is a lower bound: kernels'
workspaces, fragments and what a driver keeps come on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Final

import torch

from executor.devices.factory import DeviceOptions
from executor.host.steps import host_dtype, host_product_bytes
from executor.layers.state import new_state
from executor.memory.scratch import scratch_bytes
from executor.model import AttentionShape, LayerShape, MlaShape, Model
from executor.placed_model import DeviceShard
from executor.placement.place import Placement
from executor.policies import arm_traits
from executor.session import Session, SessionOptions
from executor.token_report import report_bytes
from executor.triton_support import has_triton
from executor.weights.transfer_units import LOADERS, TransferUnit

# Each step is recorded for a ubatch of a prompt and for a token, at least, and once more as part of a whole token where
# nothing is streamed; beyond `devices.cuda`'s limits none is. An H200 kept 8 KiB a step of a token (786,432 bytes
# of 24 layers with experts, `python -m benchmarks.gpu.token_budget --part memory`): this is an upper bound.
_RECORDINGS_A_STEP: Final = 2
_RECORDED_STEP_BYTES: Final = 32 << 10


@dataclass(frozen=True, slots=True)
class ByteTotals:
    """Bytes by what asks for them; `total` adds them up."""

    @property
    def total(self) -> int:
        """All parts together, in bytes."""
        return sum(getattr(self, f.name) for f in fields(self))


@dataclass(frozen=True, slots=True)
class DeviceFootprint(ByteTotals):
    """One device's part."""

    resident: int = 0
    slots: int = 0
    bank: int = 0
    states: int = 0  # KV caches and other mixer states, and rotary tables, for `max_positions`
    activations: int = 0  # the fixed buffers of a ubatch, and a synthetic router's choices
    scratch: int = 0  # dequantised weights and rows between products, of the step that needs most
    logits: int = 0
    recordings: int = 0  # CUDA graphs of steps, which a GPU keeps


@dataclass(frozen=True, slots=True)
class HostFootprint(ByteTotals):
    """The host's part. A mapped file's pages count only where they are pinned: else the system may drop them."""

    weights: int = 0
    loading: int = 0  # copies of tensors on their way to where they stay
    activations: int = 0  # where copies between host and device start and end
    products: int = 0  # weights that are computed with on the host, packed or in its dtype


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes that a session holds for all its arms together."""

    devices: tuple[DeviceFootprint, ...]
    host: HostFootprint


def footprint(
    model: Model,
    placement: Placement | Mapping[str, Placement],
    arms: Sequence[str],
    options: SessionOptions,
    n_logits: int,
    *,
    all_logits: bool = False,
) -> Footprint:
    """Count a session before it is opened, with passes of up to `n_logits` rows of logits.

    `all_logits`: these are of all rows of a prompt, and not of its last one alone.
    """
    sim = DeviceOptions("sim", n_devices=options.device.n_devices)
    session = Session(model, placement, arms, replace(options, device=sim, max_positions=1, madvise=False))
    try:
        shards, units = session.shards, session.units
        needs = partial(
            scratch_bytes, model, options=options, all_logits=all_logits, elsewhere=_on_host_alone(arms, units)
        )
        devices = [
            _on_device(model, shard, options, needs(shard.layers, has_output=shard is shards[-1])) for shard in shards
        ]
        if options.device.kind == "cuda":
            n_recordings = _RECORDINGS_A_STEP + (_recorded_tokens(session) if has_triton() else 0)
            devices = [
                replace(device, recordings=_recorded_bytes(model, shard.layers, n_recordings))
                for device, shard in zip(devices, shards, strict=True)
            ]
        devices[-1] = replace(devices[-1], logits=n_logits * model.shape.n_vocab * 4)
        return Footprint(tuple(devices), _on_host(model, shards, units, options, session.load_mode))
    finally:
        session.close()


def state_bytes(layers: Iterable[LayerShape], n_positions: int, dtype: torch.dtype) -> int:
    """The mixer states of layers for a context of `n_positions`: a fixed part and a part for each position."""
    total = 0
    known: dict[object, tuple[int, int]] = {}
    for layer in layers:
        mixer = layer.mixer
        if mixer not in known:
            one, two = (new_state(mixer, n, torch.device("meta"), dtype).n_bytes for n in (1, 2))
            known[mixer] = one, two - one
        fixed, each = known[mixer]
        total += fixed + (n_positions - 1) * each
    return total


def _on_host_alone(arms: Iterable[str], units: Iterable[TransferUnit]) -> frozenset[str]:
    """The tensors that no arm computes with on a device."""
    traits = [arm_traits(arm) for arm in arms]
    if not all(one.computes_on_host and not one.divides for one in traits):
        return frozenset()
    return frozenset(part.info.name for unit in units if unit.what in ("ffn", "experts") for part in unit.parts)


def _on_device(model: Model, shard: DeviceShard, options: SessionOptions, scratch: int) -> DeviceFootprint:
    layers = [model.shape.layers[layer] for layer in shard.layers]
    slots = sum(slot.numel() for buffers in shard.slots.values() for slot in buffers)
    ropes = {s.mixer.rope for s in layers if isinstance(s.mixer, AttentionShape | MlaShape)}
    tables = sum(rope.dims for rope in ropes) * options.max_positions * options.dtype.itemsize
    n_used = sum(layer.moe.n_used for layer in layers if layer.moe is not None)
    chosen = n_used if options.routing is not None else 0
    return DeviceFootprint(
        resident=shard.store.n_bytes,
        slots=slots,
        bank=shard.device.reserved_bytes - slots - shard.store.n_bytes,
        states=state_bytes(layers, options.max_positions, options.dtype) + tables,
        activations=shard.fixed_bytes - shard.state_bytes + chosen * options.max_positions * 8,
        scratch=scratch,
    )


def _recorded_tokens(session: Session) -> int:
    """How many whole tokens are recorded: one for all arms in which the host does alike (`engine.recorded_tokens`)."""
    found = set()
    for arm, policy in session.policies.items():
        units = session.units if session.placements[arm].host else []
        if all(unit.what in ("ffn", "experts") for unit in units):
            found.add(tuple(policy.regime(1, unit) for unit in units))
    return len(found)


def _recorded_bytes(model: Model, layers: Iterable[int], n_recordings: int) -> int:
    """Of steps as CUDA graphs: mixer and FFN; or mixer, router, experts and, where there is one, the shared expert."""
    moes = [model.shape.layers[layer].moe for layer in layers]
    n_steps = sum(2 if moe is None else 3 + bool(moe.n_ff_shared) for moe in moes)
    return n_steps * n_recordings * _RECORDED_STEP_BYTES


def _on_host(
    model: Model,
    shards: Sequence[DeviceShard],
    units: Sequence[TransferUnit],
    options: SessionOptions,
    load_mode: str,
) -> HostFootprint:
    is_sim = options.device.kind == "sim"  # which computes nothing; asking would compile the library of products
    computed = [unit for unit in units if unit.layer in options.layers_on_host]
    packed = [unit for unit in units if unit.segments[0].source.device.type == "meta"]
    held = units if load_mode == "register" else packed
    experts = [part.info.n_bytes for unit in packed if unit.n_experts for part in unit.parts]
    unmapped = [t.n_bytes for shard in shards for t in shard.store.tensors if model.source.mapped(t.name) is None]
    per_ubatch = len(model.shape.layers) * model.shape.most_experts
    if options.device.kind == "cuda":
        per_ubatch += len(shards) * report_bytes(model.shape)
    return HostFootprint(
        weights=sum(unit.n_bytes for unit in held),
        loading=max(max(unmapped, default=0), max(experts, default=0) * min(LOADERS, len(experts))),
        activations=sum(shard.on_host.n_bytes for shard in shards) + options.max_ubatches * per_ubatch,
        products=0 if is_sim else host_product_bytes(model, computed, host_dtype(options.dtype)),
    )
