"""Launches a step behind the copies that it reads, and marks it in the trace.

A step's `key` names everything that it depends on, so that a device may record the launches once and replay them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from executor.devices.base import ReplayKey, Touched, Touches, Work
from executor.layers.dense import Weights
from executor.passes import Ubatch
from executor.placed_model import PlacedModel
from executor.policies.base import Item
from executor.streaming.streamer import StagedWeights, Streamer
from executor.tracing.pass_trace import Inside, PassTrace, compute_range
from executor.weights.device_weights import StepWeights
from executor.weights.transfer_units import StepKind

NOT_REPLAYABLE = object()
"""The key of a step that no device may record and replay."""


class StepLauncher:
    """The launches of one pass. `items` are what it streams, by the numbers of ubatch and unit."""

    def __init__(
        self,
        placed: PlacedModel,
        streamers: Sequence[Streamer],
        items: Mapping[tuple[int, int], Item],
        trace: PassTrace,
        *,
        records_tokens: bool,
    ) -> None:
        self._placed, self._streamers, self._items, self._trace = placed, streamers, items, trace
        self._records_tokens = records_tokens

    def item(self, ubatch: Ubatch, layer: int, kind: StepKind) -> Item | None:
        """What a step streams in this ubatch; None where its weights are resident, or used on the host."""
        unit = self._placed.unit_of.get((layer, kind))
        return None if unit is None else self._items.get((ubatch.number, unit.number))

    def streamer(self, layer: int) -> Streamer:
        """The streamer of a layer's device."""
        return self._streamers[self._placed.shard_of[layer]]

    def dense(
        self,
        ubatch: Ubatch,
        layer: int,
        kind: StepKind,
        name: str,
        compute: Callable[[Weights], None],
        work: Work,
        touched: Touched,
        key: Hashable = None,
        inside: Inside = "nothing",
    ) -> None:
        """Launch a dense step, streaming its unit first where it has one in this ubatch."""
        placed, shard = self._placed, self._placed.shard(layer)
        item = self.item(ubatch, layer, kind)
        streamer = self.streamer(layer)
        staged = streamer.fetch(item, None) if item is not None else None
        unit = item.unit if item is not None else None
        weights = StepWeights(placed.model, shard.store, layer, unit, staged.buffer if staged else None)
        self.step(ubatch, layer, name, lambda: compute(weights), work, staged, lambda: touched, key, inside)
        if item is not None:
            streamer.release(item)

    def step(
        self,
        ubatch: Ubatch,
        layer: int,
        name: str,
        compute: Callable[[], None],
        work: Work,
        staged: StagedWeights | None,
        touched: Touches,
        key: Hashable,
        inside: Inside = "nothing",
    ) -> None:
        """Launch a step that reads what was `staged` (None: resident weights only).

        `touched` tells what else it reads and writes; `key` names what it depends on besides layer, name, tokens and
        slot. `inside`: which of its marks its own kernels can make.
        """
        device = self._placed.shard(layer).device
        buffer = None if staged is None else staged.buffer.data_ptr()
        start = self._trace.mark(device, "compute", inside)
        is_recorded = staged is None and self._records_tokens and ubatch.phase == "decode"
        alone = key is not NOT_REPLAYABLE and not is_recorded
        replay = None if not alone else ReplayKey((layer, name, ubatch.n_tokens), (buffer, key))
        with compute_range(layer, name):
            device.launch("compute", compute, work, replay, partial(_with_weights, touched, staged))
        end = self._trace.mark(device, "compute")
        waits_for = staged.waits_for if staged is not None else None
        self._trace.add(device, "compute", "compute", name, ubatch, start, end, layer=layer, waits_for=waits_for)


def _with_weights(touched: Touches, staged: StagedWeights | None) -> Touched:
    """The same with the weights that the step relies on."""
    return touched() if staged is None else replace(touched(), holds=staged.expected())
