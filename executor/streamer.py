"""Carries a policy's decisions out: slots, copies, waits. Knows no arm by name.

For each streamed item the engine calls `fetch` (bytes are on their way and the compute stream waits for
them), launches the step, then calls `release`. With N slots, copies run up to N - 1 items ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from executor.devices.base import Device, Event, Range, StreamName
from executor.nvtx_ranges import copy_range
from executor.policies.base import Flags, Item, Plan, Policy
from executor.trace import PassTrace


@dataclass(slots=True)
class Slot:
    """A device buffer that split after split is copied into. `free` happens when its last reader is done."""

    index: int
    buffer: torch.Tensor
    free: Event | None = None


@dataclass(slots=True)
class Flight:
    """An item's copies: where they go, when they are complete, and which experts are on board."""

    item: Item
    plan: Plan
    slot: Slot
    present: Flags | None = None
    ready: Event | None = None
    copy_id: int | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a step computes on. `place_of` maps an expert to its place in `buffer`; None: the identity."""

    buffer: torch.Tensor
    waits_for: int | None
    n_copied: int  # experts that crossed the bus
    n_hits: int | None = None
    n_misses: int | None = None
    place_of: torch.Tensor | None = None


class Streamer:
    """One device's slots and copies under one policy."""

    def __init__(self, device: Device, policy: Policy, slots: Sequence[torch.Tensor]) -> None:
        self._device = device
        self._policy = policy
        self._slots = [Slot(i, buffer) for i, buffer in enumerate(slots)]
        self._items: Sequence[Item] = ()
        self._flights: dict[int, Flight] = {}
        self._trace = PassTrace(enabled=False)

    def begin(self, items: Sequence[Item], trace: PassTrace) -> None:
        """Start a pass over `items`; issues the first copies ahead."""
        self._items = items
        self._flights.clear()
        self._trace = trace
        for slot in self._slots:
            slot.free = None
        self._look_ahead(-1)

    def needs_routing(self, item: Item) -> bool:
        """Whether `fetch` must be given the router's choice."""
        return item.is_moe and self._flight(item).plan.needs_routing

    def fetch(self, item: Item, used: Flags | None) -> Fetched:
        """Complete an item's copies, make the compute stream wait for them, and send the next ones ahead.

        On the copy stream this item's missing experts go before the next item's hot ones: the other order
        would make this step wait for bytes it does not need.
        """
        flight = self._flight(item)
        if used is not None:
            self._policy.observe(item, used)
        self._complete(flight, used)
        self._look_ahead(item.number)
        if flight.ready is not None and flight.plan.when == "ahead":
            self._device.wait("compute", flight.ready)
        n_copied = item.split.n_experts if flight.present is None else int(flight.present.sum())
        return Fetched(flight.slot.buffer, flight.copy_id, n_copied)

    def release(self, item: Item) -> None:
        """The step that reads the item is queued: its slot is free when the compute stream gets here."""
        slot = self._flights.pop(item.number).slot
        slot.free = self._device.event()
        self._device.record("compute", slot.free)

    def _flight(self, item: Item) -> Flight:
        if item.number not in self._flights:
            slot = self._slots[item.number % len(self._slots)]
            self._flights[item.number] = Flight(item, self._policy.plan(item), slot)
        return self._flights[item.number]

    def _look_ahead(self, number: int) -> None:
        for item in self._items[number + 1 : number + len(self._slots)]:
            flight = self._flight(item)
            if flight.plan.when == "ahead" and flight.ready is None:
                self._send_ahead(flight)

    def _send_ahead(self, flight: Flight) -> None:
        if flight.plan.what == "whole":
            self._copy(flight, "copy", flight.item.split.whole(flight.slot.buffer), "whole", None)
        elif flight.plan.hot is not None and flight.plan.hot.any():
            ranges = flight.item.split.runs(flight.slot.buffer, flight.plan.hot)
            self._copy(flight, "copy", ranges, "hot", flight.plan.hot)

    def _complete(self, flight: Flight, used: Flags | None) -> None:
        stream: StreamName = "copy" if flight.plan.when == "ahead" else "compute"
        split, buffer = flight.item.split, flight.slot.buffer
        if flight.plan.what == "whole":
            if flight.copy_id is None:
                self._copy(flight, stream, split.whole(buffer), "whole", None)
            return
        assert used is not None, "a selective copy needs the router's choice"
        missing = used if flight.present is None else used & ~flight.present
        if missing.any():
            what = "selective" if flight.present is None else "missing"
            self._copy(flight, stream, split.runs(buffer, missing), what, missing)

    def _copy(self, flight: Flight, stream: StreamName, ranges: list[Range], what: str, experts: Flags | None) -> None:
        device, split = self._device, flight.item.split
        if stream == "copy" and flight.slot.free is not None and flight.copy_id is None:
            device.wait("copy", flight.slot.free)
        n_bytes = sum(piece.n_bytes for piece in ranges)
        start = self._trace.mark(device, stream)
        with copy_range(split.layer, split.label, what, n_bytes):
            device.copy_in(stream, ranges)
        end = self._trace.mark(device, stream)
        if stream == "copy":
            flight.ready = end or self._ordering_event(stream)
        flight.copy_id = self._trace.new_copy_id()
        self._trace.count_h2d(n_bytes)
        if experts is not None:
            flight.present = experts if flight.present is None else flight.present | experts
        self._trace.add(
            device,
            stream,
            "h2d",
            f"copy {what}",
            flight.item.ubatch,
            start,
            end,
            layer=split.layer,
            tensor=split.label,
            bytes=n_bytes,
            whole_bytes=split.n_bytes,
            n_experts=None if not split.n_experts else split.n_experts if experts is None else int(experts.sum()),
            slot=flight.slot.index,
            correlation_id=flight.copy_id,
        )

    def _ordering_event(self, stream: StreamName) -> Event:
        event = self._device.event()
        self._device.record(stream, event)
        return event
