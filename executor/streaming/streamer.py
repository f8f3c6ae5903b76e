"""Carries a policy's decisions out on one device: slots, copies, waits. Knows no arm by name.

For each streamed item the engine calls `fetch` (bytes are on their way and the compute stream waits for them),
launches the step, then calls `release`. Copies run ahead as far as the slots that they need have been released.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from executor.arrays import Flags, Int64
from executor.devices.base import CopyRange, Device, StreamName
from executor.policies.base import Item, Policy
from executor.streaming.copies import CopyIssuer, PendingCopy, Slot
from executor.streaming.expert_cache import ExpertCacheBuffer
from executor.streaming.substitutes import Substitutes
from executor.tracing.pass_trace import PassTrace
from executor.weights.transfer_units import StepKind, TransferUnit


class SlotRotation:
    """Which slot each item of a pass has, and which item had it before."""

    def __init__(self, buffers: Mapping[StepKind, Sequence[torch.Tensor]]) -> None:
        self.slots = {kind: [Slot(i, buffer) for i, buffer in enumerate(found)] for kind, found in buffers.items()}
        self._slot_of: list[Slot] = []
        self._previous: list[int | None] = []

    def begin(self, items: Sequence[Item]) -> None:
        """Share the slots out to the items of a pass, which are numbered from 0; all slots are free."""
        self._slot_of, self._previous = [], []
        taken: dict[StepKind, list[int]] = {kind: [] for kind in self.slots}
        for slots in self.slots.values():
            for slot in slots:
                slot.free = None
        for item in items:
            slots, before = self.slots[item.unit.what], taken[item.unit.what]
            self._slot_of.append(slots[len(before) % len(slots)])
            self._previous.append(before[-len(slots)] if len(before) >= len(slots) else None)
            before.append(item.number)

    def slot(self, number: int) -> Slot:
        """The slot of item `number`."""
        return self._slot_of[number]

    def previous(self, number: int) -> int | None:
        """The item that has the slot of item `number` before it does; None: none in this pass."""
        return self._previous[number]


@dataclass(frozen=True, slots=True)
class StagedWeights:
    """What a step computes on, and how it is laid out there."""

    buffer: torch.Tensor  # (n_bytes,) uint8: a slot, or the bank
    layout: TransferUnit
    waits_for: int | None  # correlation_id of the last copy that the step reads
    expected: Callable[[], list[CopyRange]]
    """What the step finds in `buffer`, as the copies that would have put it there."""
    n_copied: int  # experts that crossed the bus
    n_hits: int | None = None  # experts that the bank had; None where it was not asked
    n_misses: int | None = None
    place_of: torch.Tensor | None = None
    """(n_experts,) int32 on the device: an expert's place in `buffer`; None: the identity."""
    substitutes: torch.Tensor | None = None
    """(n_experts,) int64 on the device: stand-ins for experts that the host computes; None where it computes none."""


class Streamer:
    """One device's slots and copies under one policy.

    `slots` holds each kind of step's buffers, (n_bytes,) uint8; `banks` the bank of each unit's number, for arms
    with an expert cache; `substitutes` serves arms that divide a layer's experts between device and host.
    """

    def __init__(
        self,
        device: Device,
        policy: Policy,
        slots: Mapping[StepKind, Sequence[torch.Tensor]],
        banks: Mapping[int, ExpertCacheBuffer] | None = None,
        substitutes: Substitutes | None = None,
        *,
        number: int = 0,
        n_devices: int = 1,
    ) -> None:
        """`number`: the device's place among the `n_devices` that a ubatch passes in turn."""
        self._waits_first, self._waits_between = number > 0, n_devices > 1
        self._device = device
        self._policy = policy
        self._substitutes = substitutes
        self._banks = banks or {}
        self._rotation = SlotRotation(slots)
        self._items: Sequence[Item] = ()
        self._pending: dict[int, PendingCopy] = {}
        self._copies = CopyIssuer(device, PassTrace(enabled=False))

    @property
    def bank_bytes(self) -> int:
        """Device memory of the expert cache."""
        return sum(bank.n_bytes for bank in {id(bank): bank for bank in self._banks.values()}.values())

    def begin(self, items: Sequence[Item], trace: PassTrace) -> None:
        """Start a pass over `items`; issues the first copies ahead."""
        self._items = items
        self._pending.clear()
        self._copies = CopyIssuer(self._device, trace)
        self._rotation.begin(items)
        if items:
            self._look_ahead(-1, items[0].ubatch.number - self._waits_first)

    def needs_routing(self, item: Item) -> bool:
        """Whether `fetch` must be given the router's choice."""
        return item.is_moe and self._pending_copy(item).plan.needs_routing

    def may_divide(self, item: Item) -> bool:
        """Whether `divide` may name experts, so that the host has to have the activations."""
        return item.is_moe and self._pending_copy(item).plan.divided

    def n_for_host(self, item: Item, n_used: int) -> int:
        """How many of a lone token's `n_used` experts the host computes, whichever the router chooses.

        0: none, or that depends on what is missing, which `divide` tells. Else `divide_as` takes those that it were.
        """
        pending = self._pending_copy(item)
        if not pending.plan.divided or pending.plan.what == "bank" or item.ubatch.n_tokens > 1:
            return 0
        return self._policy.n_for_host(item, n_used)

    def divide_as(self, item: Item, on_host: Flags) -> None:
        """The host computes these experts (n_experts,), which are in use.

        Call it before `fetch`, which copies the others. Raises ValueError where the arm's traits do not say that it
        divides.
        """
        if self._substitutes is None:
            raise ValueError(f"arm '{self._policy.name}' divides experts, and its traits do not say that it does")
        self._pending_copy(item).on_host = on_host

    def divide(self, item: Item, used: Flags, rows: Int64) -> Flags | None:
        """The experts of `used` (n_experts,) that the host computes; None where all are left to the device.

        `rows` (n_experts,): how many of the ubatch's rows each has.

        Call it before `fetch`, which copies the others. Raises ValueError where the policy names other experts than
        those that are missing, or its traits do not say that it divides.
        """
        pending = self._pending_copy(item)
        if not pending.plan.divided:
            return None
        missing = self._missing(pending, used)
        on_host = self._policy.divide(item, missing, rows)
        if on_host is None or not on_host.any():
            return None
        if (on_host > missing).any():
            raise ValueError(f"arm '{self._policy.name}' divides experts that are not missing")
        self.divide_as(item, on_host)
        return on_host

    def fetch(self, item: Item, used: Flags | None) -> StagedWeights:
        """Complete an item's copies, make the compute stream wait for them, and send the next ones ahead.

        On the copy stream this item's missing experts go before the next item's hot ones: the other order
        would make this step wait for bytes it does not need.
        """
        pending = self._pending_copy(item)
        if used is not None:
            self._policy.observe(item, used)
        wanted = used if used is None or pending.on_host is None else used & ~pending.on_host
        if pending.plan.what == "bank" and (served := self._serve_from_bank(pending, wanted)) is not None:
            self._look_ahead(item.number, item.ubatch.number)
            n_on_host, row = self._stand_ins(pending, used)
            return (
                replace(served, n_misses=(served.n_misses or 0) + n_on_host, substitutes=row) if n_on_host else served
            )
        self._complete(pending, wanted)
        self._look_ahead(item.number, item.ubatch.number)
        if pending.ready is not None and pending.plan.when == "ahead":
            self._device.wait("compute", pending.ready)
        hits = pending.n_cached
        misses = None if hits is None or wanted is None else int(np.count_nonzero(wanted)) - hits
        buffer, unit = pending.slot.buffer, item.unit
        expected = partial(unit.whole, buffer)
        if wanted is not None and pending.plan.what != "whole":
            expected = partial(unit.runs, buffer, wanted)
        n_on_host, row = self._stand_ins(pending, used)
        misses = None if misses is None else misses + n_on_host
        return StagedWeights(buffer, unit, pending.copy_id, expected, pending.n_copied, hits, misses, substitutes=row)

    def release(self, item: Item) -> None:
        """The step that reads the item is queued: its slot is free when the compute stream gets here."""
        slot = self._pending.pop(item.number).slot
        if not self._policy.streams_ahead:
            return  # all copies are on the compute stream too
        slot.free = self._device.event()
        self._device.record("compute", slot.free)
        following = item.number + 1
        if following < len(self._items) and self._follows_idle(self._items[following], item.ubatch.number):
            self._look_ahead(following, item.ubatch.number)  # the slot just left may be filled as well

    def _follows_idle(self, item: Item, in_ubatch: int) -> bool:
        """Whether the device, which is in a ubatch, will wait for others before the item's."""
        return self._waits_between and item.ubatch.number > in_ubatch

    def _pending_copy(self, item: Item) -> PendingCopy:
        if item.number not in self._pending:
            self._pending[item.number] = PendingCopy(item, self._policy.plan(item), self._rotation.slot(item.number))
        return self._pending[item.number]

    def _look_ahead(self, number: int, in_ubatch: int) -> None:
        """Send what follows item `number` as far as its slots are released: all items before `number` are.

        `in_ubatch`: the one that the device is in. What the device fetches while it waits for others is out of the way
        before any missing experts are known, so several items may go.
        """
        if not self._policy.streams_ahead:
            return
        for index in range(number + 1, len(self._items)):
            before = self._rotation.previous(index)
            if before is not None and before >= number:
                return
            follows_idle = self._follows_idle(self._items[index], in_ubatch)
            pending = self._pending_copy(replace(self._items[index], follows_idle=follows_idle))
            if pending.plan.when == "ahead" and pending.ready is None:
                self._send_ahead(pending)
            if pending.plan.when == "ahead" and pending.plan.needs_routing and not follows_idle:
                return  # its missing experts go before what later items need

    def _send_ahead(self, pending: PendingCopy) -> None:
        if pending.plan.what == "whole":
            self._copies.whole(pending, "copy")
        elif pending.plan.hot is not None and pending.plan.hot.any():
            self._copies.experts(pending, "copy", "hot", pending.plan.hot)

    def _stand_ins(self, pending: PendingCopy, used: Flags | None) -> tuple[int, torch.Tensor | None]:
        """How many experts the host computes, and the row of their stand-ins, if the device computes others."""
        if pending.on_host is None or used is None:
            return 0, None
        n_on_host = int(np.count_nonzero(pending.on_host))  # all of them in use
        assert self._substitutes is not None
        is_all = n_on_host == np.count_nonzero(used)
        row = None if is_all else self._substitutes.send(pending.item.unit.layer, used, pending.on_host)
        return n_on_host, row

    def _missing(self, pending: PendingCopy, used: Flags) -> Flags:
        """What of the experts in use neither the slot nor the bank has."""
        missing = used.copy() if pending.present is None else used & ~pending.present
        bank = self._banks.get(pending.item.unit.number)
        if bank is not None and pending.plan.when == "inline":
            missing[list(bank.cache.lookup(pending.item.unit.layer, missing.nonzero()[0]))] = False
        return missing

    def _complete(self, pending: PendingCopy, used: Flags | None) -> None:
        stream: StreamName = "copy" if pending.plan.when == "ahead" else "compute"
        if pending.plan.what == "whole":
            if pending.copy_id is None:
                self._copies.whole(pending, stream)
            return
        assert used is not None, "a selective copy needs the router's choice"
        missing = used if pending.present is None else used & ~pending.present
        missing = self._take_cached(pending, missing)
        if missing.any():
            self._copies.experts(pending, stream, "selective" if pending.present is None else "missing", missing)

    def _serve_from_bank(self, pending: PendingCopy, used: Flags | None) -> StagedWeights | None:
        """The bank, once its missing experts are on their way; None where it is too small for the batch."""
        bank = self._banks.get(pending.item.unit.number)
        assert used is not None, "the bank serves the router's choice"
        serving = bank.serve(pending.item.unit, used) if bank is not None and used.any() else None
        if bank is None or serving is None:
            return None
        self._copies.missed(pending, serving)
        return StagedWeights(
            bank.buffer,
            serving.layout,
            pending.copy_id,
            partial(bank.uploads_of, pending.item.unit, serving.places),
            serving.n_misses,
            serving.n_hits,
            serving.n_misses,
            serving.place_of,
        )

    def _take_cached(self, pending: PendingCopy, missing: Flags) -> Flags:
        """Large batches read the bank: cached experts move inside the device; what is left crosses the bus."""
        unit = pending.item.unit
        bank = self._banks.get(unit.number)
        if bank is None or pending.plan.when == "ahead":
            return missing
        cached = bank.cache.lookup(unit.layer, np.flatnonzero(missing))
        pending.n_cached = len(cached)
        if not cached:
            return missing
        self._copies.cached(pending, bank, cached)
        left = missing.copy()
        left[list(cached)] = False
        return left
