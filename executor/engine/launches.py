"""Launches steps on compute streams, behind the copies that they read, and marks each in the trace."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from executor.devices.base import ReplayKey, Work
from executor.job import Ubatch
from executor.layers.weights import Weights
from executor.placed.model import PlacedModel
from executor.policies.base import Item
from executor.streaming.flight import Fetched
from executor.streaming.streamer import Streamer
from executor.tracing.nvtx_ranges import compute_range
from executor.tracing.pass_trace import PassTrace
from executor.weights.splits import StepKind
from executor.weights.step_weights import StepWeights

NOT_REPLAYABLE = object()
"""The key of a step that no device may record and replay."""


class Launches:
    """The launches of one pass. `items` are what it streams, by the numbers of ubatch and split."""

    def __init__(
        self,
        placed: PlacedModel,
        streamers: Sequence[Streamer],
        items: Mapping[tuple[int, int], Item],
        trace: PassTrace,
    ) -> None:
        self._placed, self._streamers, self._items, self._trace = placed, streamers, items, trace

    def item(self, ubatch: Ubatch, layer: int, kind: StepKind) -> Item | None:
        """What a step streams in this ubatch; None where its weights are resident, or used on the host."""
        split = self._placed.split_of.get((layer, kind))
        return None if split is None else self._items.get((ubatch.number, split.number))

    def streamer(self, layer: int) -> Streamer:
        """The streamer of a layer's device."""
        return self._streamers[self._placed.lane_of[layer]]

    def dense(
        self,
        ubatch: Ubatch,
        layer: int,
        kind: StepKind,
        name: str,
        compute: Callable[[Weights], None],
        work: Work,
        key: Hashable = None,
    ) -> None:
        """Launch a dense step, streaming its split first where it has one in this ubatch."""
        placed, lane = self._placed, self._placed.lane(layer)
        item = self.item(ubatch, layer, kind)
        streamer = self.streamer(layer)
        fetched = streamer.fetch(item, None) if item is not None else None
        split = item.split if item is not None else None
        weights = StepWeights(placed.model, lane.store, layer, split, fetched.buffer if fetched else None)
        self.step(ubatch, layer, name, lambda: compute(weights), work, fetched, key)
        if item is not None:
            streamer.release(item)

    def step(
        self,
        ubatch: Ubatch,
        layer: int,
        name: str,
        compute: Callable[[], None],
        work: Work,
        fetched: Fetched | None,
        key: Hashable,
    ) -> None:
        """Launch a step that reads what was `fetched` (None: resident weights only).

        `key` names what it depends on besides its layer, name, tokens and slot.
        """
        device = self._placed.lane(layer).device
        buffer = None if fetched is None else fetched.buffer.data_ptr()
        start = self._trace.mark(device, "compute")
        replay = None if key is NOT_REPLAYABLE else ReplayKey((layer, name, ubatch.n_tokens), (buffer, key))
        with compute_range(layer, name):
            device.launch("compute", compute, work, replay)
        end = self._trace.mark(device, "compute")
        waits_for = fetched.waits_for if fetched is not None else None
        self._trace.add(device, "compute", "compute", name, ubatch, start, end, layer=layer, waits_for=waits_for)
