"""Carries a policy's decisions out: slots, copies, waits. Knows no arm by name.

For each streamed item the engine calls `fetch` (bytes are on their way and the compute stream waits for
them), launches the step, then calls `release`. Copies run ahead as far as the slots that they need have been
released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from executor.devices.base import Device, StreamName
from executor.policies.base import Flags, Item, Policy
from executor.streaming.bank import Bank
from executor.streaming.copies import Copies
from executor.streaming.flight import Fetched, Flight
from executor.streaming.slots import SlotTurns
from executor.tracing.pass_trace import PassTrace
from executor.weights.splits import StepKind


class Streamer:
    """One device's slots and copies under one policy.

    `slots` holds each kind of step's buffers, (n_bytes,) uint8; `banks` the bank of each split's number, for arms
    with an expert cache.
    """

    def __init__(
        self,
        device: Device,
        policy: Policy,
        slots: Mapping[StepKind, Sequence[torch.Tensor]],
        banks: Mapping[int, Bank] | None = None,
    ) -> None:
        self._device = device
        self._policy = policy
        self._banks = banks or {}
        self._turns = SlotTurns(slots)
        self._items: Sequence[Item] = ()
        self._flights: dict[int, Flight] = {}
        self._copies = Copies(device, PassTrace(enabled=False))

    @property
    def bank_bytes(self) -> int:
        """Device memory of the expert cache."""
        return sum(bank.n_bytes for bank in {id(bank): bank for bank in self._banks.values()}.values())

    def begin(self, items: Sequence[Item], trace: PassTrace) -> None:
        """Start a pass over `items`; issues the first copies ahead."""
        self._items = items
        self._flights.clear()
        self._copies = Copies(self._device, trace)
        self._turns.begin(items)
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
        if flight.plan.what == "bank" and (served := self._serve_from_bank(flight, used)) is not None:
            self._look_ahead(item.number)
            return served
        self._complete(flight, used)
        self._look_ahead(item.number)
        if flight.ready is not None and flight.plan.when == "ahead":
            self._device.wait("compute", flight.ready)
        hits = flight.n_cached
        misses = None if hits is None or used is None else int(used.sum()) - hits
        return Fetched(flight.slot.buffer, item.split, flight.copy_id, flight.n_copied, hits, misses)

    def release(self, item: Item) -> None:
        """The step that reads the item is queued: its slot is free when the compute stream gets here."""
        slot = self._flights.pop(item.number).slot
        slot.free = self._device.event()
        self._device.record("compute", slot.free)

    def _flight(self, item: Item) -> Flight:
        if item.number not in self._flights:
            self._flights[item.number] = Flight(item, self._policy.plan(item), self._turns.slot(item.number))
        return self._flights[item.number]

    def _look_ahead(self, number: int) -> None:
        """Send what follows item `number` as far as its slots are released: all items before `number` are."""
        if not self._policy.streams_ahead:
            return
        for index in range(number + 1, len(self._items)):
            if self._turns.previous(index) >= max(number, 0):
                return
            flight = self._flight(self._items[index])
            if flight.plan.when == "ahead" and flight.ready is None:
                self._send_ahead(flight)
            if flight.plan.when == "ahead" and flight.plan.needs_routing:
                return  # its missing experts go before what later items need

    def _send_ahead(self, flight: Flight) -> None:
        if flight.plan.what == "whole":
            self._copies.whole(flight, "copy")
        elif flight.plan.hot is not None and flight.plan.hot.any():
            self._copies.experts(flight, "copy", "hot", flight.plan.hot)

    def _complete(self, flight: Flight, used: Flags | None) -> None:
        stream: StreamName = "copy" if flight.plan.when == "ahead" else "compute"
        if flight.plan.what == "whole":
            if flight.copy_id is None:
                self._copies.whole(flight, stream)
            return
        assert used is not None, "a selective copy needs the router's choice"
        missing = used if flight.present is None else used & ~flight.present
        missing = self._take_cached(flight, missing)
        if missing.any():
            self._copies.experts(flight, stream, "selective" if flight.present is None else "missing", missing)

    def _serve_from_bank(self, flight: Flight, used: Flags | None) -> Fetched | None:
        """The bank, once its missing experts are on their way; None where it is too small for the batch."""
        bank = self._banks.get(flight.item.split.number)
        assert used is not None, "the bank serves the router's choice"
        serving = bank.serve(flight.item.split, used) if bank is not None else None
        if bank is None or serving is None:
            return None
        self._copies.missed(flight, serving)
        return Fetched(
            bank.buffer,
            serving.layout,
            flight.copy_id,
            serving.n_misses,
            serving.n_hits,
            serving.n_misses,
            serving.place_of,
        )

    def _take_cached(self, flight: Flight, missing: Flags) -> Flags:
        """Large batches read the bank: cached experts move inside the device; what is left crosses the bus."""
        split = flight.item.split
        bank = self._banks.get(split.number)
        if bank is None or flight.plan.when == "ahead":
            return missing
        cached = bank.cache.lookup(split.layer, np.flatnonzero(missing))
        flight.n_cached = len(cached)
        if not cached:
            return missing
        self._copies.cached(flight, bank, cached)
        left = missing.copy()
        left[list(cached)] = False
        return left
