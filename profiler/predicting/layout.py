"""What a placed model asks of a pass, layer by layer: its steps, the work of each, and the bytes that it streams.

Layers that ask for the same share a kind, so that what a step costs is worked out once a kind and not once a layer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final, Literal

import numpy as np
import torch

from executor.arrays import Floats
from executor.engine.work import dense_work, device_bytes, experts_work, host_bytes, mix_work
from executor.host.steps import host_dtype
from executor.model import DeltaNetShape, LayerShape, Model, TensorInfo
from executor.output_rows import drops_rows
from executor.placement.place import Placement, is_movable
from executor.quants.products import MOST_ROWS
from executor.weights.transfer_units import StepKind, TensorLayout, TransferUnit, host_groups, step_kind

STEP_NAMES: Final[Mapping[StepKind, str]] = {
    "mix": "attn",
    "ffn": "ffn",
    "router": "router",
    "shared": "shared",
    "experts": "experts",
}
"""What a trace calls the steps of a layer."""
_RANKS: Final = {"up": 0, "gate": 1, "down": 2}
"""The order in which a graph has an FFN's products."""
Where = Literal["device", "host", "out", "in"]
"""What a step keeps busy: the device, the CPU, or the bus on the way out of or into the device."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a kind of layer, or of the ends of a pass. Steps with one `signature` and name cost the same."""

    name: str
    where: Where
    signature: str = ""
    layer: LayerShape | None = None
    tensors: tuple[TensorInfo, ...] = ()
    row_bytes: float = 0.0
    """Bytes a token that the bus carries; of steps that are copies."""

    @property
    def positions_matter(self) -> bool:
        """Whether the step costs more the more positions a token sees."""
        return self.name == "attn" and self.layer is not None and not isinstance(self.layer.mixer, DeltaNetShape)

    @property
    def window(self) -> int | None:
        """How far back a token sees; None: to the first position."""
        return None if self.layer is None else getattr(self.layer.mixer, "window", None)

    @property
    def is_moe(self) -> bool:
        """Whether the step costs more the more experts are in use."""
        return self.name == "experts" and self.where in ("device", "host")


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What layers of one kind do: steps in order on the device, and instead of some, trips to the CPU."""

    shape: LayerShape
    steps: tuple[Step, ...]
    on_host: Mapping[str, tuple[Step, ...]]
    """By step name: out over the bus, on the CPU, back, for ubatches in the `cpu` regime."""
    flags: Step | None
    """The copy of the router's flags to the host; None where nothing is routed."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A placed model. `kind_of[layer]` is an index into `kinds`; `units` are what is streamed, by layer and step."""

    model: Model
    kinds: tuple[LayerKind, ...]
    kind_of: tuple[int, ...]
    device_of: tuple[int, ...]
    units: Mapping[tuple[int, str], TransferUnit]
    embed: Step
    logits: Step
    sample: Step
    dtype: torch.dtype
    moe_layers: tuple[int, ...]
    """The layers that have experts."""
    trips: Mapping[tuple[int, str], tuple[Step, ...]] = field(default_factory=dict)
    """By layer and step, instead of the kind's `on_host`: of steps in part, where products run by their weights."""

    @property
    def n_devices(self) -> int:
        return max(self.device_of) + 1

    def trip(self, layer: int, step: str) -> tuple[Step, ...] | None:
        """A step's way to the CPU and back, and what of it the device does meanwhile; None: it never goes there."""
        return self.trips.get((layer, step)) or self.kinds[self.kind_of[layer]].on_host.get(step)

    def drops_rows(self, layer: int) -> bool:
        """Whether only rows whose logits are wanted go through what follows the layer's mixer."""
        return layer == len(self.kind_of) - 1 and drops_rows(self.model.shape)

    @property
    def move(self) -> tuple[Step, ...]:
        """Carrying a ubatch's rows to the next device: out, in, and noting there where they begin."""
        row = float(self.model.shape.hidden * self.dtype.itemsize)
        out, back = (
            Step("copy activations", where, _sign("move", where, row), row_bytes=row) for where in ("out", "in")
        )
        return out, back, Step("begin", "device")


def build_layout(model: Model, placement: Placement, device_of: Sequence[int], dtype: torch.dtype) -> Layout:
    """The layout of a model under a placement; `device_of` holds each layer's device and, last, the output's."""
    units = _units(model, placement)
    tensors = _tensors_by_step(model)
    kinds: dict[tuple[object, ...], LayerKind] = {}
    numbers: dict[tuple[object, ...], int] = {}
    kind_of = []
    for layer, shape in enumerate(model.shape.layers):
        key = (shape, *(_look(tensors[layer, kind]) for kind in STEP_NAMES if (layer, kind) in tensors))
        if key not in kinds:
            of_layer = {kind: tensors[layer, kind] for kind in STEP_NAMES if (layer, kind) in tensors}
            kinds[key] = _kind(model, shape, of_layer, dtype)
        kind_of.append(numbers.setdefault(key, len(numbers)))
    output = model.tensors[model.shape.output_tensor]
    return Layout(
        model=model,
        kinds=tuple(kinds.values()),
        kind_of=tuple(kind_of),
        device_of=tuple(device_of),
        units=units,
        embed=Step("embed", "device", _sign(model.shape.hidden)),
        logits=Step("logits", "device", _sign(_look((output,))), None, (output,)),
        sample=Step("sample", "device", _sign(model.shape.n_vocab)),
        dtype=dtype,
        moe_layers=tuple(layer for layer, shape in enumerate(model.shape.layers) if shape.moe is not None),
    )


def placed_layout(layout: Layout, placement: Placement, *, by_tensor: bool = False) -> Layout:
    """The layout of the same model under another placement, which costs a tenth of building it.

    `by_tensor`: each product runs where its own weights are, and not a whole step where the arm has it.
    """
    placed = replace(layout, units=_units(layout.model, placement))
    return replace(placed, trips=_trips(placed)) if by_tensor else placed


def _trips(layout: Layout) -> dict[tuple[int, str], tuple[Step, ...]]:
    """Those of the steps that have some of their matrices on the device."""
    found: dict[tuple[int, str], tuple[Step, ...]] = {}
    known: dict[tuple[int, str, frozenset[str]], tuple[Step, ...]] = {}
    for (layer, name), unit in layout.units.items():
        kind = layout.kinds[layout.kind_of[layer]]
        if name not in kind.on_host:
            continue
        _, whole, *_ = kind.on_host[name]
        host = frozenset(part.info.short_name for part in unit.parts)
        if len(host) < len(_matrices(whole)):
            key = layout.kind_of[layer], name, host
            if key not in known:
                known[key] = _trip_by_tensor(kind.on_host[name], host)
            found[layer, name] = known[key]
    return found


def _trip_by_tensor(whole: tuple[Step, ...], host: Collection[str]) -> tuple[Step, ...]:
    """There and back for each run of products whose weights are on the `host`; the others on the device."""
    out, on_host, back, *_ = whole
    in_order = sorted(_matrices(on_host), key=lambda tensor: _RANKS[_projection(tensor)])
    found: list[Step] = []
    for is_there, products in groupby(in_order, lambda tensor: tensor.short_name in host):
        tensors = tuple(products)
        names = sorted(tensor.short_name for tensor in tensors)
        part = replace(on_host, signature=_sign(on_host.signature, names), tensors=tensors)
        found += [out, part, back] if is_there else [replace(part, where="device")]
    return tuple(found)


def _matrices(step: Step) -> list[TensorInfo]:
    return [tensor for tensor in step.tensors if is_movable(tensor)]


def _projection(tensor: TensorInfo) -> Literal["up", "gate", "down"]:
    name = tensor.short_name
    return "down" if "down" in name else "up" if "up" in name else "gate"


def _units(model: Model, placement: Placement) -> dict[tuple[int, str], TransferUnit]:
    return {
        (layer, STEP_NAMES[kind]): _unit(number, layer, kind, tensors)
        for number, (layer, kind, tensors) in enumerate(host_groups(model, placement))
    }


def step_work(
    step: Step, n_tokens: Floats, n_past: Floats, distinct: Floats, dtype: torch.dtype
) -> tuple[Floats, Floats]:
    """(points,) flops and bytes of a step by the rules of the `sim` device, each point a ubatch of `n_tokens` after
    `n_past` positions with `distinct` experts in use."""
    moved, kept = (host_bytes, host_dtype(dtype)) if step.where == "host" else (device_bytes, dtype)
    ones = np.ones_like(n_past)
    if step.where in ("out", "in") or step.name in ("embed", "sample", "add", "begin"):
        return 0 * ones, 0 * ones
    assert step.layer is not None or step.name == "logits"
    if step.name == "attn":
        return _mix_work(step, n_tokens, n_past, kept)
    if step.name == "experts":
        assert step.layer is not None
        assert step.layer.moe is not None
        one, more = (experts_work(step.tensors, step.layer.moe, n, 1, kept, moved) for n in (1, MOST_ROWS + 1))
        return one.flops * n_tokens, np.where(n_tokens <= MOST_ROWS, one.n_bytes, more.n_bytes) * distinct
    one, more = (dense_work(step.tensors, n, kept, moved) for n in (1, MOST_ROWS + 1))
    return one.flops * n_tokens, np.where(n_tokens <= MOST_ROWS, one.n_bytes, more.n_bytes) * ones


def _mix_work(step: Step, n_tokens: Floats, n_past: Floats, dtype: torch.dtype) -> tuple[Floats, Floats]:
    assert step.layer is not None
    asked, back = np.unique(np.stack([n_tokens, n_past]), axis=1, return_inverse=True)
    works = [mix_work(step.layer, step.tensors, int(n), int(past), dtype) for n, past in asked.T]
    flops, n_bytes = (np.array([getattr(work, part) for work in works]) for part in ("flops", "n_bytes"))
    return flops[back.ravel()], n_bytes[back.ravel()]


def _unit(number: int, layer: int, kind: StepKind, tensors: Sequence[TensorInfo]) -> TransferUnit:
    n_experts = tensors[0].shape[0] if kind == "experts" else 0
    parts = tuple(TensorLayout(tensor, 0, 0) for tensor in tensors)
    return TransferUnit(number, layer, kind, parts, sum(t.n_bytes for t in tensors), n_experts, ())


def _tensors_by_step(model: Model) -> dict[tuple[int, StepKind], tuple[TensorInfo, ...]]:
    found: dict[tuple[int, StepKind], list[TensorInfo]] = {}
    for tensor in model.tensors.values():
        if tensor.layer is not None:
            kind = step_kind(tensor, model.shape.layers[tensor.layer])
            found.setdefault((tensor.layer, kind), []).append(tensor)
    return {key: tuple(tensors) for key, tensors in found.items()}


def _kind(
    model: Model, shape: LayerShape, tensors: Mapping[StepKind, tuple[TensorInfo, ...]], dtype: torch.dtype
) -> LayerKind:
    moe, hidden = shape.moe, model.shape.hidden
    names: tuple[StepKind, ...] = ("mix", "ffn")
    if moe is not None:
        names = ("mix", "router", "shared", "experts") if moe.n_ff_shared else ("mix", "router", "experts")
    steps = tuple(_step(shape, kind, tensors.get(kind, ())) for kind in names)
    row = float(hidden * dtype.itemsize)
    trip_of = steps[-1]
    to_host = row if moe is None else row + moe.n_used * (8 + 4)
    trip = (
        Step("copy activations", "out", _sign("out", to_host), shape, row_bytes=to_host),
        Step(trip_of.name, "host", trip_of.signature, shape, trip_of.tensors),
        Step("copy activations", "in", _sign("in", row), shape, row_bytes=row),
        *([Step("add", "device", _sign(hidden), shape)] if moe is not None else []),
    )
    flags = None if moe is None else Step("copy flags", "out", _sign(moe.n_experts), shape)
    return LayerKind(shape, steps, {trip_of.name: trip}, flags)


def _step(shape: LayerShape, kind: StepKind, tensors: tuple[TensorInfo, ...]) -> Step:
    part = shape.mixer if kind == "mix" else shape.ffn
    return Step(STEP_NAMES[kind], "device", _sign(part, _look(tensors)), shape, tensors)


def _look(tensors: Sequence[TensorInfo]) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    """What of tensors decides a step's cost."""
    return tuple((tensor.short_name, tensor.quant, tensor.shape) for tensor in tensors)


def _sign(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
