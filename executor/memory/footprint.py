"""What a session will hold in memory, told in a moment by opening it on the `sim` device, whose tensors have no bytes.

So the engine's own code decides what is reserved, and nothing is counted by a rule of its own but what grows with
the context, which is not even sized there, and what a step needs for a while. All of it is a lower bound: kernels'
workspaces, fragments and what a driver keeps come on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from executor.devices.factory import DeviceOptions
from executor.host.weights import host_dtype, host_product_bytes
from executor.layers.state import new_state
from executor.memory.holdings import Footprint, OnDevice, OnHost
from executor.memory.scratch import scratch_bytes
from executor.model import Model
from executor.placed.lane import Lane
from executor.placement.place import Placement
from executor.session import Session, SessionOptions
from executor.shape import AttentionShape, LayerShape, MlaShape, MoeFfn
from executor.weights.host_memory import LOADERS
from executor.weights.splits import Split


def footprint(
    model: Model,
    placement: Placement | Mapping[str, Placement],
    arms: Sequence[str],
    options: SessionOptions,
    n_logits: int,
    *,
    computes_on_host: bool,
) -> Footprint:
    """Count a session before it is opened, with passes of up to `n_logits` logits.

    `computes_on_host`: whether any ubatch is so small, or any arm such, that host weights are used where they are.
    """
    sim = DeviceOptions("sim", n_devices=options.device.n_devices)
    session = Session(model, placement, arms, replace(options, device=sim, max_positions=1, madvise=False))
    try:
        lanes, splits = session.lanes, session.splits
        devices = [_on_device(model, lane, options) for lane in lanes]
        devices[-1] = replace(devices[-1], logits=n_logits * model.shape.n_vocab * 4)
        return Footprint(tuple(devices), _on_host(model, lanes, splits, options, session.load_mode, computes_on_host))
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


def _on_device(model: Model, lane: Lane, options: SessionOptions) -> OnDevice:
    layers = [model.shape.layers[layer] for layer in lane.layers]
    slots = sum(slot.numel() for buffers in lane.slots.values() for slot in buffers)
    ropes = {s.mixer.rope for s in layers if isinstance(s.mixer, AttentionShape | MlaShape)}
    tables = sum(rope.dims for rope in ropes) * options.max_positions * options.dtype.itemsize
    chosen = sum(s.ffn.n_used for s in layers if isinstance(s.ffn, MoeFfn)) if options.routing is not None else 0
    return OnDevice(
        resident=lane.store.n_bytes,
        slots=slots,
        bank=lane.device.reserved_bytes - slots - lane.store.n_bytes,
        states=state_bytes(layers, options.max_positions, options.dtype) + tables,
        activations=lane.fixed_bytes - lane.state_bytes + chosen * options.max_positions * 8,
        scratch=scratch_bytes(model, lane, options),
    )


def _on_host(
    model: Model,
    lanes: Sequence[Lane],
    splits: Sequence[Split],
    options: SessionOptions,
    load_mode: str,
    computes_on_host: bool,
) -> OnHost:
    packed = [split for split in splits if split.segments[0].source.device.type == "meta"]
    held = splits if load_mode == "register" else packed
    experts = [part.info.n_bytes for split in packed if split.n_experts for part in split.parts]
    unmapped = [t.n_bytes for lane in lanes for t in lane.store.tensors if model.source.mapped(t.name) is None]
    n_experts = max((s.ffn.n_experts for s in model.shape.layers if isinstance(s.ffn, MoeFfn)), default=0)
    flags = options.max_ubatches * len(model.shape.layers) * n_experts
    return OnHost(
        weights=sum(split.n_bytes for split in held),
        loading=max(max(unmapped, default=0), max(experts, default=0) * min(LOADERS, len(experts))),
        activations=sum(lane.on_host.n_bytes for lane in lanes) + flags,
        products=host_product_bytes(model, splits, host_dtype(options.dtype)) if computes_on_host else 0,
    )
