"""Puts the bytes of host tensors where copies will start from, split by split.

Two layouts. *Packed* (pinned slabs): the tensors of a split adjacent; for experts the projections of one
expert adjacent too, so neighbouring experts are one run of bytes. *In place* (memory-mapped or registered
files): each tensor where the file has it, so a run costs one copy a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal

import numpy as np
import torch

from executor.devices.base import Device
from executor.model import Model, TensorInfo
from executor.placement.place import Placement
from executor.shape import MoeFfn
from executor.weights.splits import Part, Segment, Split, StepKind, step_kind

LoadMode = Literal["none", "mmap", "register"]
"""Pinned copies of the file's bytes; the mapped file as it is; the mapped file, pinned in place."""
_STEP_ORDER: Final[tuple[StepKind, ...]] = ("mix", "ffn", "router", "shared", "experts")
LOADERS = 8
"""Splits that are loaded at once."""


def build_splits(model: Model, placement: Placement, device: Device, load_mode: LoadMode) -> list[Split]:
    """Group the host tensors by layer and step and put their bytes where copies will start from.

    The splits come in the order in which a ubatch reaches them. Raises HprofError where memory runs out or the file
    cannot be read, PinningRefusedError where the driver pins no more.
    """
    groups = _group(model, placement)
    with ThreadPoolExecutor(LOADERS) as pool:  # reading and filling release the interpreter's lock
        jobs = [
            pool.submit(_build, number, layer, kind, tensors, model, device, load_mode)
            for number, (layer, kind, tensors) in enumerate(groups)
        ]
        return [job.result() for job in jobs]


def _group(model: Model, placement: Placement) -> list[tuple[int, StepKind, list[TensorInfo]]]:
    groups: dict[tuple[int, StepKind], list[TensorInfo]] = {}
    for tensor in model.tensors.values():
        if tensor.layer is not None and placement.is_host(tensor.name):
            is_moe = isinstance(model.shape.layers[tensor.layer].ffn, MoeFfn)
            groups.setdefault((tensor.layer, step_kind(tensor, is_moe=is_moe)), []).append(tensor)
    in_order = sorted(groups, key=lambda key: (key[0], _STEP_ORDER.index(key[1])))
    return [(layer, kind, sorted(groups[layer, kind], key=_stored_order)) for layer, kind in in_order]


def _stored_order(tensor: TensorInfo) -> tuple[bool, str]:
    return tensor.quant not in ("F32",), tensor.name  # float32 needs 4-byte alignment: first in its slab


def _build(
    number: int,
    layer: int,
    kind: StepKind,
    tensors: Sequence[TensorInfo],
    model: Model,
    device: Device,
    load_mode: LoadMode,
) -> Split:
    n_experts = tensors[0].shape[0] if kind == "experts" else 0
    mapped = [model.source.mapped(t.name) for t in tensors] if load_mode != "none" else []
    views = [view for view in mapped if view is not None]
    if len(views) == len(tensors):
        parts, segments = _in_place(tensors, views, n_experts, device, load_mode)
    else:
        parts, segments = _packed(tensors, model, n_experts, device, load_mode)
    memory: Literal["pinned", "pageable"] = "pageable" if load_mode == "mmap" else "pinned"
    n_bytes = sum(t.n_bytes for t in tensors)
    return Split(number, layer, kind, parts, n_bytes, n_experts, segments, memory if device.kind == "cuda" else None)


def _packed(
    tensors: Sequence[TensorInfo], model: Model, n_experts: int, device: Device, load_mode: LoadMode
) -> tuple[tuple[Part, ...], tuple[Segment, ...]]:
    """Copied into one slab; an expert's projections lie side by side."""
    n_bytes = sum(t.n_bytes for t in tensors)
    one = [t.n_bytes // max(n_experts, 1) for t in tensors]
    offsets, stride = np.cumsum([0, *one]), sum(one) if n_experts else 0
    parts = tuple(Part(t, int(offset), stride) for t, offset in zip(tensors, offsets, strict=False))
    slab = device.host_slab(n_bytes, pinned=False)
    _fill(slab, parts, n_experts, model)
    if load_mode != "mmap":
        device.register(slab)  # after the fill: pinning pages that were touched is ten times as fast
    return parts, (Segment(slab, 0, n_bytes // max(n_experts, 1)),)


def _in_place(
    tensors: Sequence[TensorInfo], views: Sequence[torch.Tensor], n_experts: int, device: Device, load_mode: LoadMode
) -> tuple[tuple[Part, ...], tuple[Segment, ...]]:
    """Where the mapped file has them; in a slot they lie one after the other."""
    offsets = np.cumsum([0, *(t.n_bytes for t in tensors)])
    parts = tuple(
        Part(t, int(offset), t.n_bytes // n_experts if n_experts else 0)
        for t, offset in zip(tensors, offsets, strict=False)
    )
    if load_mode == "register":
        for view in views:
            device.register(view)
    return parts, tuple(Segment(view, p.offset, p.stride) for view, p in zip(views, parts, strict=True))


def _fill(slab: torch.Tensor, parts: Sequence[Part], n_experts: int, model: Model) -> None:
    if slab.device.type == "meta":
        return
    for part in parts:
        if not n_experts:
            model.source.read_into(part.info.name, slab[part.offset : part.offset + part.info.n_bytes])
            continue
        loose = torch.empty(part.info.n_bytes, dtype=torch.uint8)
        model.source.read_into(part.info.name, loose)
        width = part.info.n_bytes // n_experts
        slab.view(n_experts, -1)[:, part.offset : part.offset + width].copy_(loose.view(n_experts, width))
