"""What every step of every layer takes under an arm: the policy's decisions and the costs, at many points at once.

Layers that are alike are asked about and priced together, so that arrays are (layers, points).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from executor.arrays import Flags, Floats
from profiler.predicting.costs import CopyWay, Costs, Points
from profiler.predicting.divided import Shared, Sharing
from profiler.predicting.expert_use import ExpectedUse
from profiler.predicting.layout import LayerKind, Layout, Step
from profiler.predicting.plans import Decider, StepCopies


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A step of a layer, priced at every point, in ns. Where nothing goes on the copy stream, `in_line` is all."""

    name: str
    device: int
    in_line: Floats
    """What passes on the compute stream: the step or its trip to the CPU, copies in line, the flags going out."""
    streamed: tuple[Flags, Floats, Floats] | None = None
    """Whether the host must know the router's choice first; copies on the copy stream that go ahead, and late ones."""


@dataclass(slots=True)
class PricedUbatches:
    """Every layer's steps at the points of some ubatches, under one arm."""

    layout: Layout
    steps: list[StepTimes]
    """In order; neighbours on one device with nothing but `in_line` are one."""
    embed: Floats
    move: Floats
    """Carrying the rows to the next device."""
    last_move: Floats
    """Carrying those that leave the last layer to the output's device."""
    head: Floats
    """The logits that are wanted, and sampling."""
    n_slots: int
    routed_delay: float
    busy: dict[str, Floats] = field(default_factory=dict)
    """(points,) time of each kind of step, all layers together; copies of weights by way."""
    n_bytes: Floats = field(default_factory=lambda: np.zeros(0))


def price(layout: Layout, decider: Decider, costs: Costs, points: Points) -> PricedUbatches:
    """Ask the arm and the costs about every step of every layer."""
    return _Pricing(layout, decider, costs, points).priced()


def _append(steps: list[StepTimes], step: StepTimes) -> None:
    """Add a step, to the one before it where both pass on one compute stream and wait for nothing."""
    if steps and step.streamed is None and steps[-1].streamed is None and steps[-1].device == step.device:
        steps[-1] = StepTimes(steps[-1].name, step.device, steps[-1].in_line + step.in_line)
    else:
        steps.append(step)


class _Rows:
    """What steps cost over some points' rows; what does not depend on the experts in use is asked once a kind of layer.

    Where there are no rows, nothing costs anything.
    """

    def __init__(self, layout: Layout, decider: Decider, costs: Costs, points: Points) -> None:
        self._costs, self._decider = costs, decider
        self.n_tokens, self._is_any = points.n_tokens, points.n_tokens > 0
        self._points = replace(points, n_tokens=np.maximum(points.n_tokens, 1))
        self._asked, self._back = decider.ask(self._points.n_tokens, points.n_past)
        self._known: dict[tuple[str, str, str], Floats] = {}
        self.none = np.zeros(len(points.n_tokens))
        self._moe_layers = layout.moe_layers
        self._in_use = None if decider.use is None else self._distinct(decider.use)
        self._sharing = None if decider.use is None else Sharing(decider, costs, self._points)

    def _distinct(self, use: ExpectedUse) -> Floats:
        """(layers with experts, points): how many of them are in use."""
        asked, back = np.unique(self._points.n_tokens, return_inverse=True)
        return np.asarray(np.stack([use.distinct(int(n)) for n in asked], axis=1)[:, back])

    def ns(self, step: Step, layers: Sequence[int] = ()) -> Floats:
        """(points,): what a step takes; (layers, points) where that turns on the experts that each layer has in use."""
        if step.is_moe and self._in_use is not None:
            return self._moe_ns(step, self._in_use[[self._moe_layers.index(layer) for layer in layers]])
        key = (step.name, step.where, step.signature)
        if key not in self._known:
            self._known[key] = np.where(self._is_any, self._costs.step_ns(step, self._points, self.none), 0.0)
        return self._known[key]

    def _moe_ns(self, step: Step, distinct: Floats) -> Floats:
        n_layers, n_points = distinct.shape
        at = self._points
        every = replace(at, n_tokens=np.tile(at.n_tokens, n_layers), n_past=np.tile(at.n_past, n_layers))
        ns = self._costs.step_ns(step, every, distinct.ravel()).reshape(n_layers, n_points)
        return np.where(self._is_any, ns, 0.0)

    def shared(self, kind: LayerKind, layers: Sequence[int], divided: Flags) -> dict[str, Floats]:
        """(layers, points) each part of layers whose experts are `divided` (layers, points), as `divided.Shared` names
        it; 0 where none are."""
        parts = {part.name: np.zeros(divided.shape) for part in fields(Shared)}
        for row, (layer, here) in enumerate(zip(layers, divided, strict=True)):
            asked, back = np.unique(self.n_tokens[here], return_inverse=True)
            assert self._sharing is not None
            found = [self._sharing.layer(kind, layer, int(n)) for n in asked]
            for name, values in parts.items():
                values[row, here] = np.array([getattr(one, name) for one in found])[back]
        return parts

    def copies(self, layers: Sequence[int], step: str) -> StepCopies:
        """What the arm does for a step of layers whose weights are streamed alike."""
        return StepCopies.of(self._decider.copies(layers, step, self._asked)[..., self._back] * self._is_any)


class _Pricing:
    """All steps at some points."""

    def __init__(self, layout: Layout, decider: Decider, costs: Costs, points: Points) -> None:
        self._layout, self._decider, self._costs = layout, decider, costs
        self._all, self._outputs = (_Rows(layout, decider, costs, rows) for rows in (points, points.outputs()))
        self._busy: dict[str, Floats] = defaultdict(self._all.none.copy)
        self._n_bytes = self._all.none.copy()

    def priced(self) -> PricedUbatches:
        layout, rows = self._layout, self._all
        of_kind: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for layer, number in enumerate(layout.kind_of):
            of_kind[number, layout.drops_rows(layer)].append(layer)
        times: dict[tuple[int, str], StepTimes] = {}
        left = rows
        for (number, drops), layers in of_kind.items():
            kind = layout.kinds[number]
            of_layer = self._outputs if drops else rows
            left = self._outputs if drops else left
            for step in kind.steps:
                for alike in self._decider.alike(layers, step.name):
                    found = self._step(alike, kind, step, rows if step.name == "attn" else of_layer)
                    times |= {(layer, step.name): one for layer, one in zip(alike, found, strict=True)}
        steps: list[StepTimes] = []
        for layer, number in enumerate(layout.kind_of):
            for step in layout.kinds[number].steps:
                _append(steps, times[layer, step.name])
        embed, (logits, sample) = rows.ns(layout.embed), map(self._outputs.ns, (layout.logits, layout.sample))
        for step, ns in ((layout.embed, embed), (layout.logits, logits), (layout.sample, sample)):
            self._busy[step.name] += ns
        move, last_move = (self._move(each) for each in (rows, left))
        self._n_bytes += self._moved_bytes(left)
        return PricedUbatches(
            layout,
            steps,
            embed,
            move,
            last_move,
            logits + sample,
            self._decider.n_slots,
            self._costs.routed_copy_delay_ns,
            dict(self._busy),
            self._n_bytes,
        )

    def _move(self, rows: _Rows) -> Floats:
        return np.asarray(sum(rows.ns(step) for step in self._layout.move)) if self._layout.n_devices > 1 else rows.none

    def _moved_bytes(self, left: _Rows) -> Floats:
        """What goes from device to device; only what is `left` to the output's."""
        *inner, last = np.diff(self._layout.device_of) != 0
        n_rows = np.count_nonzero(inner) * self._all.n_tokens + last * left.n_tokens
        return np.asarray(n_rows * self._layout.move[1].row_bytes)

    def _step(self, layers: Sequence[int], kind: LayerKind, step: Step, rows: _Rows) -> Iterator[StepTimes]:
        """A step of layers that are alike, for each of them."""
        compute, devices = rows.ns(step, layers), [self._layout.device_of[layer] for layer in layers]
        shape = len(layers), len(rows.none)
        flags: Floats | float = 0.0
        if step.name == "router" and kind.flags is not None:
            flags = rows.ns(kind.flags)
            self._spend("copy flags", np.broadcast_to(flags, shape))
        if not self._decider.streams(layers[0], step.name):
            self._spend(step.name, np.broadcast_to(compute, shape))
            for device, own in zip(devices, np.broadcast_to(compute + flags, shape), strict=True):
                yield StepTimes(step.name, device, own)
            return
        copies = rows.copies(layers, step.name)
        self._n_bytes += copies.n_bytes.sum(axis=0)
        self._spend(step.name, np.where(copies.on_host | copies.divided, 0.0, compute))
        trip = self._trip(layers, step, copies.on_host, rows)
        own = compute if trip is None else np.where(copies.on_host, trip, compute)
        if copies.divided.any():
            own = np.where(copies.divided, self._divided(layers, kind, copies.divided, rows), own)
        own = own + flags
        late_copies = copies.late_bytes, copies.late_copies
        n = len(self._layout.units[layers[0], step.name].parts)
        ahead = self._copy_ns(copies.ahead_bytes, copies.ahead_copies, "ahead", n)
        inline = np.where(copies.late_ahead, 0.0, self._copy_ns(*late_copies, "inline", n))
        late = np.where(copies.late_ahead, self._copy_ns(*late_copies, "ahead", n), 0.0)
        self._spend("copies of weights", ahead + late + inline)
        own = (
            own
            + self._costs.inside_ns(copies.inside_bytes)
            + inline
            + np.where((inline > 0) & copies.waits, self._costs.routed_copy_delay_ns, 0.0)
        )
        uses_host = copies.waits if self._layout.n_devices > 1 else np.zeros_like(copies.waits)
        uses_streams = np.asarray((uses_host | (ahead > 0) | (late > 0)).any(axis=1))
        for row, device in enumerate(devices):
            if uses_streams[row]:
                yield StepTimes(step.name, device, own[row], (copies.waits[row], ahead[row], late[row]))
            else:
                yield StepTimes(step.name, device, own[row])

    def _spend(self, name: str, ns: Floats) -> None:
        """`ns` (layers, points) on one kind of step."""
        self._busy[name] += ns.sum(axis=0)

    def _copy_ns(self, n_bytes: Floats, n_copies: Floats, way: CopyWay, n_tensors: int) -> Floats:
        return np.where(n_bytes > 0, self._costs.copy_ns(n_bytes, n_copies, way, n_tensors), 0.0)

    def _trip(self, layers: Sequence[int], step: Step, on_host: Flags, rows: _Rows) -> Floats | None:
        """A step's way over the bus to the CPU and back; None where no point goes it."""
        trip = self._layout.trip(layers[0], step.name)
        if trip is None or not on_host.any():
            return None
        parts = [np.broadcast_to(rows.ns(part, layers), on_host.shape) for part in trip]
        for part, ns in zip(trip, parts, strict=True):
            self._spend(f"{part.name} on host" if part.where == "host" else part.name, np.where(on_host, ns, 0.0))
            if part.where == "in":
                self._n_bytes += np.where(on_host, rows.n_tokens * part.row_bytes, 0.0).sum(axis=0)
        return np.asarray(np.sum(parts, axis=0))

    def _divided(self, layers: Sequence[int], kind: LayerKind, divided: Flags, rows: _Rows) -> Floats:
        """(layers, points): layers whose experts CPU and device share, from the activations' way out to the sum's way
        back. Where the CPU has no part, only the way out is paid.
        """
        shared = rows.shared(kind, layers, divided)
        out, *rest = (step for step in kind.on_host["experts"] if step.where != "host")
        leave = np.where(divided, rows.ns(out), 0.0)
        back = shared["host_share"] * sum(rows.ns(step) for step in rest)
        for name, ns in {
            "experts on host": shared["host"],
            "experts": shared["compute"],
            "copies of weights": shared["copies"],
            out.name: leave + back,
        }.items():
            self._spend(name, ns)
        row_bytes = sum(step.row_bytes for step in rest)
        moved = shared["copied_bytes"] + shared["host_share"] * rows.n_tokens * row_bytes
        self._n_bytes += moved.sum(axis=0)
        return np.asarray(leave + shared["later"] + back)
