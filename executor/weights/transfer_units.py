"""Transfer units: the host tensors that one step of a layer needs, laid out so that one copy moves them.

Two layouts. *Packed* (pinned slabs): a unit's tensors adjacent; for experts the projections of one expert
adjacent too, so that neighbouring experts are one run of bytes. *In place* (memory-mapped or registered files):
each tensor where the file has it, so a run costs one copy a tensor. Stored bytes are seen as rows, as one
expert's matrices, or as numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import torch

from executor.arrays import Flags
from executor.devices.base import CopyRange, Device, SourceMemory
from executor.model import AttentionShape, LayerShape, Model, TensorInfo
from executor.placement.place import Placement

StepKind = Literal["mix", "ffn", "router", "shared", "experts"]
LoadMode = Literal["none", "mmap", "register"]
"""Pinned copies of the file's bytes; the mapped file as it is; the mapped file, pinned in place."""
_STEP_ORDER: Final[tuple[StepKind, ...]] = ("mix", "ffn", "router", "shared", "experts")
LOADERS = 8
"""Units that are loaded at once."""
_ALIGNMENT: Final = 16  # bytes: no kernel asks for more


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Where a tensor lies in a slot, in bytes: expert e of it begins at `offset + e * stride` (dense: e = 0)."""

    info: TensorInfo
    offset: int
    stride: int


@dataclass(frozen=True, slots=True)
class HostSegment:
    """Contiguous host bytes that land at byte `target_from` of a slot; `stride` bytes belong to one expert."""

    source: torch.Tensor  # (n_bytes,) uint8 on the host
    target_from: int
    stride: int


@dataclass(frozen=True, slots=True)
class TransferUnit:
    """One unit of streaming. `n_experts` is 0 for dense tensors."""

    number: int
    layer: int
    what: StepKind
    parts: tuple[TensorLayout, ...]
    n_bytes: int
    n_experts: int
    segments: tuple[HostSegment, ...] = field(repr=False)
    memory: SourceMemory | None = None  # of the segments
    label: str = field(init=False)
    """The tensors' short names, `ffn_up|ffn_gate|…`, for the trace."""

    def __post_init__(self) -> None:
        label = "|".join(part.info.short_name.removesuffix(".weight") for part in self.parts)
        object.__setattr__(self, "label", label)

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert in all its projections; 0 for dense tensors."""
        return self.n_bytes // self.n_experts if self.n_experts else 0

    def whole(self, slot: torch.Tensor) -> list[CopyRange]:
        """The copies that move everything into a slot, (n_bytes,) uint8."""
        return [CopyRange(s.source, 0, slot, s.target_from, s.source.numel()) for s in self.segments]

    def runs(self, slot: torch.Tensor, experts: Flags) -> list[CopyRange]:
        """The copies that move the chosen `experts` (n_experts,) into a slot, neighbours merged."""
        runs: list[tuple[int, int]] = []
        begin = end = 0
        for expert in experts.nonzero()[0].tolist():  # for a token's few faster than on arrays
            if expert != end:
                runs.append((begin, end))
                begin = expert
            end = expert + 1
        runs.append((begin, end))
        return [
            CopyRange(s.source, a * s.stride, slot, s.target_from + a * s.stride, (b - a) * s.stride)
            for s in self.segments
            for a, b in runs
            if a < b
        ]


def step_kind(tensor: TensorInfo, layer: LayerShape) -> StepKind:
    """Which step of its layer reads a tensor."""
    name = tensor.short_name
    if "_exps" in name:
        return "experts"
    if "_shexp" in name:
        return "shared"
    closes_mixer = isinstance(layer.mixer, AttentionShape) and layer.mixer.post_norm
    of_the_ffn = ("ffn_", "post_ffw_norm", "exp_probs") + (() if closes_mixer else ("post_attention_norm",))
    if name.startswith(of_the_ffn):
        return "ffn" if layer.moe is None else "router"
    return "mix"


def build_transfer_units(model: Model, placement: Placement, device: Device, load_mode: LoadMode) -> list[TransferUnit]:
    """Group the host tensors by layer and step and put their bytes where copies will start from.

    The units come in the order in which a ubatch reaches them. Raises HprofError where memory runs out or the file
    cannot be read, PinningRefusedError where the driver pins no more.
    """
    groups = host_groups(model, placement)
    with ThreadPoolExecutor(LOADERS) as pool:  # reading and filling release the interpreter's lock
        jobs = [
            pool.submit(_build, number, layer, kind, tensors, model, device, load_mode)
            for number, (layer, kind, tensors) in enumerate(groups)
        ]
        return [job.result() for job in jobs]


def host_groups(model: Model, placement: Placement) -> list[tuple[int, StepKind, list[TensorInfo]]]:
    """The host tensors by layer and step, in the order in which a ubatch reaches them: one group a transfer unit."""
    groups: dict[tuple[int, StepKind], list[TensorInfo]] = {}
    for name in placement.host & model.tensors.keys():  # a model may be cut to fewer layers than were placed
        tensor = model.tensors[name]
        if tensor.layer is not None:
            kind = step_kind(tensor, model.shape.layers[tensor.layer])
            groups.setdefault((tensor.layer, kind), []).append(tensor)
    in_order = sorted(groups, key=lambda key: (key[0], _STEP_ORDER.index(key[1])))
    return [(layer, kind, sorted(groups[layer, kind], key=_stored_order)) for layer, kind in in_order]


def _stored_order(tensor: TensorInfo) -> tuple[int, str]:
    """What a larger power of two divides goes first, so that every tensor begins at a multiple of its own.

    Floats need that to be read at all, blocks to be read in whole words (`executor.quants.direct.readable`). Of experts
    each one's part counts.
    """
    n_bytes = tensor.n_bytes // (tensor.shape[0] if len(tensor.shape) == 3 else 1)
    return -min(n_bytes & -n_bytes, _ALIGNMENT), tensor.name


def _build(
    number: int,
    layer: int,
    kind: StepKind,
    tensors: Sequence[TensorInfo],
    model: Model,
    device: Device,
    load_mode: LoadMode,
) -> TransferUnit:
    n_experts = tensors[0].shape[0] if kind == "experts" else 0
    mapped = [model.source.mapped(t.name) for t in tensors] if load_mode != "none" else []
    views = [view for view in mapped if view is not None]
    if len(views) == len(tensors):
        parts, segments = _in_place(tensors, views, n_experts, device, load_mode)
    else:
        parts, segments = _packed(tensors, model, n_experts, device, load_mode)
    memory = device.source_memory(is_pinned=load_mode != "mmap")
    n_bytes = sum(t.n_bytes for t in tensors)
    return TransferUnit(number, layer, kind, parts, n_bytes, n_experts, segments, memory)


def _packed(
    tensors: Sequence[TensorInfo], model: Model, n_experts: int, device: Device, load_mode: LoadMode
) -> tuple[tuple[TensorLayout, ...], tuple[HostSegment, ...]]:
    """Copied into one slab; an expert's projections lie side by side."""
    n_bytes = sum(t.n_bytes for t in tensors)
    one = [t.n_bytes // max(n_experts, 1) for t in tensors]
    offsets, stride = np.cumsum([0, *one]), sum(one) if n_experts else 0
    parts = tuple(TensorLayout(t, int(offset), stride) for t, offset in zip(tensors, offsets, strict=False))
    slab = device.host_slab(n_bytes, pinned=False)
    _fill(slab, parts, n_experts, model)
    if load_mode != "mmap":
        device.register(slab)  # after the fill: pinning pages that were touched is ten times as fast
    return parts, (HostSegment(slab, 0, n_bytes // max(n_experts, 1)),)


def _in_place(
    tensors: Sequence[TensorInfo], views: Sequence[torch.Tensor], n_experts: int, device: Device, load_mode: LoadMode
) -> tuple[tuple[TensorLayout, ...], tuple[HostSegment, ...]]:
    """Where the mapped file has them; in a slot they lie one after the other."""
    offsets = np.cumsum([0, *(t.n_bytes for t in tensors)])
    parts = tuple(
        TensorLayout(t, int(offset), t.n_bytes // n_experts if n_experts else 0)
        for t, offset in zip(tensors, offsets, strict=False)
    )
    if load_mode == "register":
        for view in views:
            device.register(view)
    return parts, tuple(HostSegment(view, p.offset, p.stride) for view, p in zip(views, parts, strict=True))


def _fill(slab: torch.Tensor, parts: Sequence[TensorLayout], n_experts: int, model: Model) -> None:
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


def expert_view(buffer: torch.Tensor, part: TensorLayout) -> torch.Tensor:
    """One projection of all experts in a slot or bank, as a strided (places, out, row_bytes) view.

    A packed buffer interleaves the projections, so `places` is how often the stride fits behind the offset.
    """
    n_experts, n_rows = part.info.shape[0], part.info.shape[1]
    row_bytes = part.info.n_bytes // (n_experts * n_rows)
    one = n_rows * row_bytes
    places = (buffer.numel() - part.offset - one) // part.stride + 1
    return buffer.as_strided(
        (places, n_rows, row_bytes), (part.stride, row_bytes, 1), buffer.storage_offset() + part.offset
    )
