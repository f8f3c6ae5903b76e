"""How steps and copies follow one another: the streams of a pass as running times, for many cells at once.

The same order as the engine issues (`executor/engine`, `executor/streaming/streamer.py`): each device computes in
order; copies ahead take turns on its copy stream, and wait for the last reader of their slot; a step waits for its
copies; what the router decides waits for its flags. Arrays hold one element a cell; cells with more ubatches come
first, so that those still running are a slice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiler.predicting.costs import CopyWay, Costs, Points
from profiler.predicting.layout import LayerKind, Layout, Step
from profiler.predicting.plans import Decider, StepCopies

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """A step of a layer, priced at every point, in ns. Without `copies` on the copy stream, `in_line` is all."""

    name: str
    device: int
    in_line: Floats
    """What passes on the compute stream: the step or its trip to the CPU, copies in line, the flags going out."""
    copies: StepCopies | None = None
    ahead: Floats | None = None
    late: Floats | None = None
    """Copies on the copy stream: those that go ahead, and those that wait for the router."""

    def spread_to(self, points: Ints, n_points: int) -> StepTimes:
        """The same among `n_points` points, of which `points` are those here; the others do nothing."""

        def wider(values: NDArray[Any]) -> NDArray[Any]:
            found = np.zeros(n_points, values.dtype)
            found[points] = values
            return found

        copies = self.copies
        if copies is not None:
            copies = StepCopies(*(wider(getattr(copies, one.name)) for one in fields(copies)))
        ahead, late = (None if one is None else wider(one) for one in (self.ahead, self.late))
        return StepTimes(self.name, self.device, wider(self.in_line), copies, ahead, late)


@dataclass(slots=True)
class PricedUbatches:
    """Every layer's steps at the points of some ubatches, under one arm."""

    layout: Layout
    steps: list[StepTimes]
    """In order; neighbours on one device with nothing but `in_line` are one."""
    embed: Floats
    move: Floats
    """Carrying the rows to the next device."""
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
    if steps and step.copies is None and steps[-1].copies is None and steps[-1].device == step.device:
        steps[-1] = StepTimes(steps[-1].name, step.device, steps[-1].in_line + step.in_line)
    else:
        steps.append(step)


class _Pricing:
    """What steps cost at some points; what does not depend on the experts in use is asked once a kind of layer."""

    def __init__(self, layout: Layout, decider: Decider, costs: Costs, points: Points) -> None:
        self._layout, self._decider, self._costs, self._points = layout, decider, costs, points
        self._none = np.zeros(len(points.n_tokens))
        self._asked, self._back = decider.ask(points.n_tokens, points.n_past)
        self._known: dict[tuple[str, str, str], Floats] = {}
        self._busy: dict[str, Floats] = defaultdict(self._none.copy)
        self._n_bytes = self._none.copy()

    def priced(self) -> PricedUbatches:
        layout, in_use = self._layout, self._distinct()
        steps: list[StepTimes] = []
        last = len(layout.kind_of) - 1
        for layer, number in enumerate(layout.kind_of):
            kind, distinct = layout.kinds[number], in_use.get(layer, self._none)
            own, behind = (kind.steps[:1], kind.steps[1:]) if layer == last else (kind.steps, ())
            for step in own:
                _append(steps, self._step(layer, kind, step, distinct))
        for times in self._behind_last_mixer(last, behind, in_use.get(last, self._none)):
            _append(steps, times)
        embed, move = self._ns(layout.embed, self._none), self._none
        self._busy["embed"] += embed
        if layout.n_devices > 1:
            move = np.asarray(sum(self._ns(step, self._none) for step in layout.move))
            n_moves = np.count_nonzero(np.diff(layout.device_of))
            self._n_bytes += n_moves * self._points.n_tokens * layout.move[1].row_bytes
        delay, n_slots = self._costs.routed_copy_delay_ns, self._decider.n_slots
        return PricedUbatches(layout, steps, embed, move, n_slots, delay, dict(self._busy), self._n_bytes)

    def _behind_last_mixer(self, layer: int, steps: Sequence[Step], distinct: Floats) -> Iterator[StepTimes]:
        """The last layer's steps behind its mixer, which fewer rows than the ubatch has may go through."""
        points, kind = self._points, self._layout.kinds[self._layout.kind_of[layer]]
        if points.n_outputs is None:
            yield from (self._step(layer, kind, step, distinct) for step in steps)
            return
        some = np.flatnonzero(points.n_outputs > 0)
        left = points.n_outputs[some]
        rows = replace(points, n_tokens=left, n_past=(points.n_past + points.n_tokens)[some] - left, n_outputs=None)
        inner = _Pricing(self._layout, self._decider, self._costs, rows)
        in_use = inner._distinct().get(layer, inner._none)
        for step in steps:
            yield inner._step(layer, kind, step, in_use).spread_to(some, len(self._none))
        for name, ns in inner._busy.items():
            self._busy[name][some] += ns
        self._n_bytes[some] += inner._n_bytes

    def _distinct(self) -> dict[int, Floats]:
        """By MoE layer, (points,): how many experts are in use."""
        use = self._decider.use
        if use is None:
            return {}
        asked, back = np.unique(self._points.n_tokens, return_inverse=True)
        table = np.stack([use.distinct(int(n)) for n in asked], axis=1)
        return {layer: table[place][back] for place, layer in enumerate(self._layout.moe_layers)}

    def _ns(self, step: Step, distinct: Floats) -> Floats:
        if step.is_moe:
            return self._costs.step_ns(step, self._points, distinct)
        key = (step.name, step.where, step.signature)
        if key not in self._known:
            self._known[key] = self._costs.step_ns(step, self._points, distinct)
        return self._known[key]

    def _step(self, layer: int, kind: LayerKind, step: Step, distinct: Floats) -> StepTimes:
        compute, device = self._ns(step, distinct), self._layout.device_of[layer]
        flags: Floats | float = 0.0
        if step.name == "router" and kind.flags is not None:
            flags = self._ns(kind.flags, distinct)
            self._busy["copy flags"] += flags
        decided = self._decider.copies(layer, step.name, self._asked)
        if decided is None:
            self._busy[step.name] += compute
            return StepTimes(step.name, device, compute + flags)
        copies = decided.at(self._back)
        self._n_bytes += copies.n_bytes
        self._busy[step.name] += np.where(copies.on_host, 0.0, compute)
        trip = self._trip(kind.on_host.get(step.name), copies.on_host, distinct)
        own = flags + (compute if trip is None else np.where(copies.on_host, trip, compute))
        ahead = self._copy_ns(copies.ahead_bytes, copies.ahead_copies, "ahead")
        inline = np.where(copies.late_ahead, 0.0, self._copy_ns(copies.late_bytes, copies.late_copies, "inline"))
        late = np.where(copies.late_ahead, self._copy_ns(copies.late_bytes, copies.late_copies, "ahead"), 0.0)
        self._busy["copies of weights"] += ahead + late + inline
        own = own + inline + np.where((inline > 0) & copies.waits, self._costs.routed_copy_delay_ns, 0.0)
        uses_host = copies.waits.any() and self._layout.n_devices > 1
        if not (uses_host or ahead.any() or late.any()):
            return StepTimes(step.name, device, own)
        return StepTimes(step.name, device, own, copies, ahead, late)

    def _copy_ns(self, n_bytes: Floats, n_copies: Floats, way: CopyWay) -> Floats:
        return np.where(n_bytes > 0, self._costs.copy_ns(n_bytes, n_copies, way), 0.0)

    def _trip(self, trip: Sequence[Step] | None, on_host: Flags, distinct: Floats) -> Floats | None:
        """A step's way over the bus to the CPU and back; None where no point goes it."""
        if trip is None or not on_host.any():
            return None
        parts = [self._ns(part, distinct) for part in trip]
        for part, ns in zip(trip, parts, strict=True):
            self._busy[f"{part.name} on host" if part.where == "host" else part.name] += np.where(on_host, ns, 0.0)
            if part.where == "in":
                self._n_bytes += np.where(on_host, self._points.n_tokens * part.row_bytes, 0.0)
        return np.asarray(np.sum(parts, axis=0))


class Streams:
    """The running times of all devices' streams, in ns, an element a cell."""

    def __init__(self, n_devices: int, n_cells: int, n_slots: int, begin_ns: float) -> None:
        self.compute = np.full((n_devices, n_cells), begin_ns)
        self.copy = np.zeros((n_devices, n_cells))
        self.host = np.zeros(n_cells)
        self._n_slots = n_slots
        self._free: dict[tuple[int, str], list[Floats]] = {}
        self._taken: dict[tuple[int, str], int] = defaultdict(int)
        self._n_cells = n_cells

    def run_ubatch(self, priced: PricedUbatches, at: Ints) -> None:
        """One ubatch of the first `len(at)` cells; `at` are its points in `priced`."""
        m = len(at)
        self.compute[0, :m] = np.maximum(self.compute[0, :m], self.host[:m]) + priced.embed[at]
        here = 0
        for step in priced.steps:
            here = self._move(priced, here, step.device, at)
            self._step(step, priced.routed_delay, at)
        self._move(priced, here, priced.layout.device_of[-1], at)

    def _move(self, priced: PricedUbatches, here: int, there: int, at: Ints) -> int:
        if here != there:
            m = len(at)
            arrives = self.compute[here, :m] + priced.move[at]
            self.compute[there, :m] = np.maximum(self.compute[there, :m], arrives)
            self.compute[here, :m] = arrives
        return there

    def _step(self, step: StepTimes, routed_delay: float, at: Ints) -> None:
        m, copies = len(at), step.copies
        compute = self.compute[step.device, :m]
        if copies is None:
            compute += step.in_line[at]
            return
        assert step.ahead is not None
        assert step.late is not None
        waits, ahead, late = copies.waits[at], step.ahead[at], step.late[at]
        if waits.any():
            self.host[:m] = np.where(waits, np.maximum(self.host[:m], compute), self.host[:m])
        uses = ahead + late > 0
        if uses.any():
            ready = self._copy(step, ahead, late, waits, uses, routed_delay)
            np.maximum(compute, ready, out=compute)
        compute += step.in_line[at]
        if uses.any():
            self._release(step, compute)

    def _copy(
        self, step: StepTimes, ahead: Floats, late: Floats, waits: Flags, uses: Flags, routed_delay: float
    ) -> Floats:
        """When the copies of a step are complete; those ahead wait for their slot, late ones for the router too."""
        m = len(ahead)
        before, free = self.copy[step.device, :m], self._slot(step)[:m]
        done = np.where(ahead > 0, np.maximum(before, free), before) + ahead
        if late.any():
            chosen = np.maximum(self.compute[step.device, :m] + routed_delay, free)
            done = np.where(late > 0, np.where(waits, np.maximum(done, chosen), done) + late, done)
        self.copy[step.device, :m] = np.where(uses, done, before)
        return np.where(uses, done, 0.0)

    def _slot(self, step: StepTimes) -> Floats:
        """When the slot that a step's copies go to next is free, an element a cell."""
        key = (step.device, step.name)
        ring = self._free.setdefault(key, [np.zeros(self._n_cells) for _ in range(self._n_slots)])
        return ring[self._taken[key] % self._n_slots]

    def _release(self, step: StepTimes, at_ns: Floats) -> None:
        self._slot(step)[: len(at_ns)] = at_ns
        self._taken[step.device, step.name] += 1


@dataclass(frozen=True, slots=True)
class CellTimes:
    """Times in ns, (cells,)."""

    ttft: Floats
    prefill: Floats


def run_prompts(
    priced: PricedUbatches, points_of: Sequence[Ints], n_cells: int, ends: Mapping[str, float]
) -> CellTimes:
    """Prompts of many cells. `points_of[u]`: the points of ubatch u of the cells that have one, which are the first.

    `ends`: `begin`, `logits`, `sample` and `token` in ns.
    """
    streams = Streams(priced.layout.n_devices, n_cells, priced.n_slots, ends["begin"])
    for at in points_of:
        streams.run_ubatch(priced, at)
    last = streams.compute[priced.layout.device_of[-1]]
    known = last + ends["logits"]
    return CellTimes(known + ends["sample"] + ends["token"], known)


def token_times(priced: PricedUbatches, n_points: int, ends: Mapping[str, float]) -> Floats:
    """(points,): one decoded token each, in ns: its steps, logits and sampling, until it is known.

    The host waits for each token; copies for the next one go on meanwhile: then it is the third of three that counts.
    """
    at = np.arange(n_points)
    streams = Streams(priced.layout.n_devices, n_points, priced.n_slots, 0.0)
    known = [np.zeros(n_points)]
    for _ in range(3 if any(step.copies is not None for step in priced.steps) else 1):
        streams.run_ubatch(priced, at)
        known.append(streams.compute[priced.layout.device_of[-1]] + ends["logits"] + ends["sample"] + ends["token"])
        streams.compute[:] = np.maximum(streams.compute, known[-1])
    return np.asarray(known[-1] - known[-2])
