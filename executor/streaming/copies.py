"""The copies of one pass on one device: a unit whole, some of its experts, what a bank lacks, or what it has.

What is copied and when is the streamer's to say; here it is queued, marked and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from executor.arrays import Flags
from executor.devices.base import CopyRange, Device, Event, StreamName, Touched, Work
from executor.policies.base import Item, Plan
from executor.streaming.expert_cache import CachedBatch, ExpertCacheBuffer
from executor.tracing.pass_trace import PassTrace, copy_range


@dataclass(slots=True)
class Slot:
    """A device buffer that unit after unit is copied into. `free` happens when its last reader is done."""

    index: int
    buffer: torch.Tensor  # (n_bytes,) uint8
    free: Event | None = None


@dataclass(slots=True)
class PendingCopy:
    """An item's copies: where they go, when they are complete, and which experts are on board."""

    item: Item
    plan: Plan
    slot: Slot
    present: Flags | None = None  # experts that are in the slot; None: none were copied singly
    ready: Event | None = None
    copy_id: int | None = None
    n_copied: int = 0  # experts that crossed the bus
    n_cached: int | None = None  # experts that the bank had; None where it was not asked
    on_host: Flags | None = None  # experts in use that the host computes; None where the item is not divided


class CopyIssuer:
    """The copies of one pass on one device. What a pending copy carries is noted in it."""

    def __init__(self, device: Device, trace: PassTrace) -> None:
        self._device, self._trace = device, trace

    def whole(self, pending: PendingCopy, stream: StreamName) -> None:
        """All bytes of a copy's unit, into its slot."""
        unit = pending.item.unit
        self._over_the_bus(pending, stream, unit.whole(pending.slot.buffer), "whole", n_experts=unit.n_experts or None)
        pending.n_copied = unit.n_experts

    def experts(self, pending: PendingCopy, stream: StreamName, what: str, experts: Flags) -> None:
        """Some experts of a copy's unit, into its slot, neighbours merged."""
        ranges = pending.item.unit.runs(pending.slot.buffer, experts)
        n_experts = int(np.count_nonzero(experts))
        self._over_the_bus(pending, stream, ranges, what, n_experts=n_experts)
        pending.n_copied += n_experts
        pending.present = experts if pending.present is None else pending.present | experts

    def missed(self, pending: PendingCopy, serving: CachedBatch) -> None:
        """What a bank lacks, on the compute stream, which alone reads and writes it."""
        self._over_the_bus(
            pending, "compute", serving.uploads, "missed", n_bytes=serving.n_bytes, n_experts=serving.n_misses
        )

    def cached(self, pending: PendingCopy, bank: ExpertCacheBuffer, cached: Mapping[int, int]) -> None:
        """Experts that a bank has (expert -> place), into the copy's slot: inside the device."""
        unit = pending.item.unit
        start = self._trace.mark(self._device, "compute")
        n_bytes = len(cached) * bank.expert_bytes
        fn = partial(bank.copy_cached, unit, cached, pending.slot.buffer)
        touches = partial(_moved_inside, pending, bank, cached)
        self._device.launch("compute", fn, Work(n_bytes=2.0 * n_bytes), touches=touches)
        end = self._trace.mark(self._device, "compute")
        fields = {"layer": unit.layer, "tensor": unit.label, "bytes": n_bytes, "n_experts": len(cached)}
        self._trace.add(self._device, "compute", "d2d", "copy cached", pending.item.ubatch, start, end, **fields)

    def _over_the_bus(
        self,
        pending: PendingCopy,
        stream: StreamName,
        ranges: list[CopyRange],
        what: str,
        *,
        n_experts: int | None,
        n_bytes: int | None = None,
    ) -> None:
        device, unit = self._device, pending.item.unit
        if stream == "copy" and pending.slot.free is not None and pending.copy_id is None:
            device.wait("copy", pending.slot.free)
        n_bytes = sum(piece.n_bytes for piece in ranges) if n_bytes is None else n_bytes
        start = self._trace.mark(device, stream)
        with copy_range(unit.layer, unit.label, what, n_bytes):
            device.copy_in(stream, ranges)
        end = self._trace.mark(device, stream)
        if stream == "copy":
            pending.ready = end or self._ordering_event(stream)
        pending.copy_id = self._trace.new_copy_id()
        self._trace.count_h2d(n_bytes)
        self._trace.add(
            device,
            stream,
            "h2d",
            f"copy {what}",
            pending.item.ubatch,
            start,
            end,
            layer=unit.layer,
            tensor=unit.label,
            bytes=n_bytes,
            whole_bytes=unit.n_bytes,
            n_experts=n_experts,
            slot=None if what == "missed" else pending.slot.index,
            correlation_id=pending.copy_id,
            source_memory=unit.memory,
        )

    def _ordering_event(self, stream: StreamName) -> Event:
        event = self._device.event()
        self._device.record(stream, event)
        return event


def _moved_inside(pending: PendingCopy, bank: ExpertCacheBuffer, cached: Mapping[int, int]) -> Touched:
    """Experts that go from a bank to a slot."""
    unit = pending.item.unit
    experts = np.isin(np.arange(unit.n_experts), list(cached))
    return Touched(holds=bank.uploads_of(unit, list(cached.items())), fills=unit.runs(pending.slot.buffer, experts))
