"""The slots of one device: each kind of step has its own N, of its own size, which its splits take in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from executor.devices.base import Event
from executor.policies.base import Item
from executor.weights.splits import StepKind


@dataclass(slots=True)
class Slot:
    """A device buffer that split after split is copied into. `free` happens when its last reader is done."""

    index: int
    buffer: torch.Tensor  # (n_bytes,) uint8
    free: Event | None = None


class SlotTurns:
    """Which slot each item of a pass has, and which item had it before."""

    def __init__(self, buffers: Mapping[StepKind, Sequence[torch.Tensor]]) -> None:
        self.slots = {kind: [Slot(i, buffer) for i, buffer in enumerate(found)] for kind, found in buffers.items()}
        self._slot_of: list[Slot] = []
        self._previous: list[int] = []

    def begin(self, items: Sequence[Item]) -> None:
        """Share the slots out to the items of a pass, which are numbered from 0; all slots are free."""
        self._slot_of, self._previous = [], []
        taken: dict[StepKind, list[int]] = {kind: [] for kind in self.slots}
        for slots in self.slots.values():
            for slot in slots:
                slot.free = None
        for item in items:
            slots, before = self.slots[item.split.what], taken[item.split.what]
            self._slot_of.append(slots[len(before) % len(slots)])
            self._previous.append(before[-len(slots)] if len(before) >= len(slots) else -1)
            before.append(item.number)

    def slot(self, number: int) -> Slot:
        """The slot of item `number`."""
        return self._slot_of[number]

    def previous(self, number: int) -> int:
        """The item that has the slot of item `number` before it does; -1: none in this pass."""
        return self._previous[number]
