"""Opens a session: reserves each device's buffers and puts every weight where some arm wants it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from executor.devices.base import Device
from executor.errors import HprofError, PinningRefusedError
from executor.host.weights import HostWeights, host_dtype
from executor.model import Model
from executor.placed.lane import Lane, make_lane
from executor.placed.model import PlacedModel
from executor.placement.devices import devices_of, layers_to_devices
from executor.placement.place import Placement
from executor.session.options import SessionOptions
from executor.shape import LayerShape, MoeFfn
from executor.weights.host_memory import LoadMode, build_splits
from executor.weights.splits import Split


def place_model(
    model: Model,
    placements: Collection[Placement],
    devices: Sequence[Device],
    options: SessionOptions,
    load_mode: LoadMode,
) -> PlacedModel:
    """The model with all that any of `placements` keeps on a device resident, and all that any streams in splits.

    Raises HprofError where memory runs out or cannot be pinned.
    """
    lane_of = layers_to_devices(len(model.shape.layers), options.tensor_split or (1.0,) * len(devices))
    lanes = _make_lanes(model, devices, lane_of, options)
    _place_resident(model, placements, lanes, lane_of)
    streamed = Placement(frozenset().union(*(placement.host for placement in placements)), "what any arm streams")
    if options.madvise:
        for name in streamed.host:
            model.source.will_need(name)
    splits = _load(model, streamed, devices[0], load_mode)
    host = HostWeights(model, host_dtype(options.dtype), splits)
    if options.computes_on_host and options.device.kind != "sim":
        host.prepare(splits)
    return PlacedModel(
        model, lanes, lane_of, splits, host, options.routing, options.dtype, options.seed, options.prompt
    )


def reserve_flags(device: Device, layers: Sequence[LayerShape], max_ubatches: int) -> torch.Tensor | None:
    """Pinned host memory (max_ubatches, layers, experts) uint8 for every router's choice in a pass.

    None where no layer has experts, or the device computes nothing.
    """
    n_experts = max((layer.ffn.n_experts for layer in layers if isinstance(layer.ffn, MoeFfn)), default=0)
    if not n_experts or device.kind == "sim":
        return None
    shape = (max_ubatches, len(layers), n_experts)
    return device.host_slab(torch.Size(shape).numel(), pinned=True).view(shape)


def _make_lanes(model: Model, devices: Sequence[Device], lane_of: Sequence[int], options: SessionOptions) -> list[Lane]:
    return [
        make_lane(
            model,
            device,
            [layer for layer, lane in enumerate(lane_of) if lane == number],
            options.dtype,
            max_tokens=options.max_positions,
            max_ubatch=options.max_ubatch,
        )
        for number, device in enumerate(devices)
    ]


def _place_resident(
    model: Model, placements: Collection[Placement], lanes: Sequence[Lane], lane_of: Sequence[int]
) -> None:
    """Upload what any arm keeps on each device."""
    on_host_for_all = frozenset.intersection(*(placement.host for placement in placements))
    for number, lane in enumerate(lanes):
        lane.store.ensure(
            tensor.name
            for tensor in model.tensors.values()
            if tensor.name not in on_host_for_all
            and number in devices_of(tensor, lane_of, tied_embeddings=model.shape.tied_embeddings)
        )


def _load(model: Model, streamed: Placement, device: Device, load_mode: LoadMode) -> list[Split]:
    try:
        return build_splits(model, streamed, device, load_mode)
    except PinningRefusedError as refused:
        n_layers, n_bytes = len(model.shape.layers), sum(model.tensors[name].n_bytes for name in streamed.host)
        fitting = n_layers * refused.pinned_bytes // n_bytes
        slice_ = f", or --layers {fitting}, which would fit" if 0 < fitting < n_layers else ""
        raise HprofError(f"{refused}{slice_}") from None
