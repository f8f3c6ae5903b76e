"""An item on its way to the device, and what its step finds there."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from executor.devices.base import Event
from executor.policies.base import Flags, Item, Plan
from executor.streaming.slots import Slot
from executor.weights.splits import Split


@dataclass(slots=True)
class Flight:
    """An item's copies: where they go, when they are complete, and which experts are on board."""

    item: Item
    plan: Plan
    slot: Slot
    present: Flags | None = None  # experts that are in the slot; None: none were copied singly
    ready: Event | None = None
    copy_id: int | None = None
    n_copied: int = 0  # experts that crossed the bus
    n_cached: int | None = None  # experts that the bank had; None where it was not asked


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a step computes on, and how it is laid out there."""

    buffer: torch.Tensor  # (n_bytes,) uint8: a slot, or the bank
    layout: Split
    waits_for: int | None  # correlation_id of the last copy that the step reads
    n_copied: int  # experts that crossed the bus
    n_hits: int | None = None  # experts that the bank had; None where it was not asked
    n_misses: int | None = None
    place_of: torch.Tensor | None = None
    """(n_experts,) int32 on the device: an expert's place in `buffer`; None: the identity."""
