"""How steps and copies follow one another: the streams of a pass as running times, for many cells at once.

The same order as the engine issues (`executor/engine`, `executor/streaming/streamer.py`): each device computes in
order; copies ahead take turns on its copy stream, and wait for the last reader of their slot; a step waits for its
copies; what the router decides waits for its flags. Arrays hold one element a cell; cells with more ubatches come
first, so that those still running are a slice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from executor.arrays import Flags, Floats
from profiler.predicting.pricing import PricedUbatches, StepTimes

Ints = NDArray[np.intp]


class Streams:
    """The running times of all devices' streams, in ns, an element a cell."""

    def __init__(self, priced: PricedUbatches, n_cells: int, begin_ns: float) -> None:
        n_devices = priced.layout.n_devices
        self._priced = priced
        self.compute = np.full((n_devices, n_cells), begin_ns)
        self.copy = np.zeros((n_devices, n_cells))
        self.host = np.zeros(n_cells)
        self._slots: dict[tuple[int, str], _Slots] = defaultdict(lambda: _Slots(priced.n_slots, n_cells))
        self._in_line = np.stack([step.in_line for step in priced.steps])
        streamed = [step.streamed for step in priced.steps if step.streamed is not None]
        self._streamed = [np.stack(parts) for parts in zip(*streamed, strict=True)]

    def run_ubatch(self, at: Ints) -> None:
        """One ubatch of the first `len(at)` cells; `at` are its points."""
        priced, m = self._priced, len(at)
        self.compute[0, :m] = np.maximum(self.compute[0, :m], self.host[:m]) + priced.embed[at]
        here, copies = 0, iter(self._copies(at))
        for step, in_line in zip(priced.steps, self._in_line[:, at], strict=True):
            here = self._move(here, step.device, priced.move, at)
            if step.streamed is None:
                self.compute[step.device, :m] += in_line
            else:
                self._step(step, in_line, next(copies))
        last = self._move(here, priced.layout.device_of[-1], priced.last_move, at)
        self.compute[last, :m] += priced.head[at]

    def _copies(self, at: Ints) -> Iterator[_Copies]:
        """Of each step that streams."""
        if not self._streamed:
            return
        waits, ahead, late = (part[:, at] for part in self._streamed)
        uses, goes_ahead = ahead + late > 0, ahead > 0
        says = [is_so.tolist() for is_so in (waits.any(1), uses.any(1), uses.all(1), late.any(1), goes_ahead.all(1))]
        yield from map(_Copies._make, zip(waits, ahead, late, uses, *says, strict=True))

    def _move(self, here: int, there: int, ns: Floats, at: Ints) -> int:
        if here != there:
            m, ns = len(at), ns[at]
            arrives = self.compute[here, :m] + ns
            self.compute[there, :m] = np.where(
                ns > 0, np.maximum(self.compute[there, :m], arrives), self.compute[there, :m]
            )
            self.compute[here, :m] = arrives
        return there

    def _step(self, step: StepTimes, in_line: Floats, copies: _Copies) -> None:
        m = len(in_line)
        compute = self.compute[step.device, :m]
        if copies.any_waits:
            self.host[:m] = np.where(copies.waits, np.maximum(self.host[:m], compute), self.host[:m])
        if not copies.any_uses:
            compute += in_line
            return
        slots = self._slots[step.device, step.name]
        np.maximum(compute, self._copy(step.device, compute, copies, slots.next_free(m)), out=compute)
        compute += in_line
        slots.release(None if copies.all_use else copies.uses, compute)

    def _copy(self, device: int, compute: Floats, copies: _Copies, free: Floats) -> Floats:
        """When the copies of a step are complete; those ahead wait for their slot, late ones for the router too."""
        before = self.copy[device, : len(free)]
        if copies.all_ahead and not copies.any_late:
            before[:] = np.maximum(before, free) + copies.ahead
            return before
        late, done = copies.late, np.where(copies.ahead > 0, np.maximum(before, free), before) + copies.ahead
        if copies.any_late:
            chosen = np.maximum(compute + self._priced.routed_delay, free)
            done = np.where(late > 0, np.where(copies.waits, np.maximum(done, chosen), done) + late, done)
        before[:] = np.where(copies.uses, done, before)
        return np.where(copies.uses, done, 0.0)


class _Copies(NamedTuple):
    """What a step streams in one ubatch of some cells, (cells,), and what is so in any or all of them."""

    waits: Flags
    ahead: Floats
    late: Floats
    uses: Flags
    any_waits: bool
    any_uses: bool
    all_use: bool
    any_late: bool
    all_ahead: bool


class _Slots:
    """One kind of step's slots on one device, in every cell: when each is free, and which is taken next: one number
    until some cell does not use what others do."""

    def __init__(self, n_slots: int, n_cells: int) -> None:
        self._free = np.zeros((n_slots, n_cells))
        self._next: int | Ints = 0

    def next_free(self, n_cells: int) -> Floats:
        """When the slot that is taken next is free, in the first cells."""
        if isinstance(self._next, int):
            return self._free[self._next, :n_cells]
        return np.asarray(self._free[self._next[:n_cells], np.arange(n_cells)])

    def release(self, uses: Flags | None, at_ns: Floats) -> None:
        """The step has read the slot, in the first cells, of those that use one; None: in all of them."""
        if isinstance(self._next, int):
            if uses is None:
                self._free[self._next, : len(at_ns)] = at_ns
                self._next = (self._next + 1) % len(self._free)
                return
            self._next = np.full(self._free.shape[1], self._next)
        cells = np.arange(len(at_ns)) if uses is None else np.flatnonzero(uses)
        self._free[self._next[cells], cells] = at_ns[cells]
        self._next[cells] = (self._next[cells] + 1) % len(self._free)


@dataclass(frozen=True, slots=True)
class CellTimes:
    """Times in ns, (cells,). `ubatches[u]`: of ubatch u in the cells that have one, which are the first."""

    ttft: Floats
    prefill: Floats
    ubatches: list[Floats]


def run_prompts(
    priced: PricedUbatches, points_of: Sequence[Ints], n_cells: int, ends: Mapping[str, float]
) -> CellTimes:
    """Prompts of many cells. `points_of[u]`: the points of ubatch u of the cells that have one, which are the first.

    `ends`: `begin`, `sample` and `token` in ns.
    """
    streams = Streams(priced, n_cells, ends["begin"])
    last = streams.compute[priced.layout.device_of[-1]]
    taken = []
    for at in points_of:
        begun = streams.compute[0, : len(at)].copy()
        streams.run_ubatch(at)
        taken.append(last[: len(at)] - begun)
    return CellTimes(last + ends["token"], last - ends["sample"], taken)


def token_times(priced: PricedUbatches, n_points: int, ends: Mapping[str, float]) -> Floats:
    """(points,): one decoded token each, in ns: its steps, logits and sampling, until it is known (`ends`: `token`).

    The host waits for each token; copies for the next one go on meanwhile: then it is the third of three that counts.
    """
    at = np.arange(n_points)
    streams = Streams(priced, n_points, 0.0)
    known = [np.zeros(n_points)]
    for _ in range(3 if any(step.streamed is not None for step in priced.steps) else 1):
        streams.run_ubatch(at)
        known.append(streams.compute[priced.layout.device_of[-1]] + ends["token"])
        streams.compute[:] = np.maximum(streams.compute, known[-1])
    return np.asarray(known[-1] - known[-2])
