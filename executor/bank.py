"""Banks: the device memory of the expert cache. Splits of equal shape share one, under one eviction order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from executor.devices.base import Device, Range
from executor.expert_cache import Eviction, ExpertCache, merge_places
from executor.policies.base import Flags
from executor.splits import Split


@dataclass(frozen=True, slots=True)
class Serving:
    """One batch served from a bank: the uploads that must run first, and where each expert lies."""

    uploads: list[Range]
    n_bytes: int  # of missed experts
    place_of: torch.Tensor  # (n_experts,) int32 on the device
    n_hits: int
    n_misses: int


class Bank:
    """Places for single experts of splits that have the same layout."""

    def __init__(self, device: Device, splits: Sequence[Split], n_places: int, eviction: Eviction) -> None:
        first = splits[0]
        self.cache = ExpertCache(n_places, eviction)
        self.expert_bytes = first.expert_bytes
        self.buffer = device.allocate(n_places * first.expert_bytes, f"the expert cache's bank of {n_places} places")
        shape = (len(splits), first.n_experts)
        n_bytes = shape[0] * shape[1] * 4
        # one row a layer: a row is rewritten a whole ubatch later, when the router has been waited for
        self._on_host = device.host_slab(n_bytes, pinned=True).view(torch.int32).view(shape)
        self._on_device = torch.zeros(shape, dtype=torch.int32, device=device.torch_device)
        self._row = {split.number: row for row, split in enumerate(splits)}

    def serve(self, split: Split, used: Flags) -> Serving | None:
        """Admit a batch's experts; None when they are more than the bank has places."""
        experts = np.flatnonzero(used)
        if not self.cache.can_hold(experts.size):
            return None
        admission = self.cache.admit(split.layer, experts)
        missed = admission.missed
        uploads = [
            self._upload(split, *run) for run in merge_places(admission.experts[missed], admission.places[missed])
        ]
        row = self._row[split.number]
        if self._on_host.device.type != "meta":
            places = np.zeros(split.n_experts, dtype=np.int32)
            places[admission.experts] = admission.places
            self._on_host[row].copy_(torch.from_numpy(places))
        n_missed = int(missed.sum())
        uploads.append(_whole(self._on_host[row], self._on_device[row]))
        n_bytes = n_missed * self.expert_bytes
        return Serving(uploads, n_bytes, self._on_device[row], experts.size - n_missed, n_missed)

    def copy_cached(self, split: Split, cached: dict[int, int], slot: torch.Tensor) -> None:
        """Copy cached experts to their places in a slot, inside the device."""
        size = self.expert_bytes
        for expert, place in cached.items():
            slot[expert * size : (expert + 1) * size].copy_(self.buffer[place * size : (place + 1) * size])

    def _upload(self, split: Split, expert: int, place: int, count: int) -> Range:
        size = self.expert_bytes
        return Range(split.segments[0].source, expert * size, self.buffer, place * size, count * size)


def build_banks(device: Device, splits: Sequence[Split], n_bytes: int, eviction: Eviction) -> dict[int, Bank]:
    """One bank a group of expert splits of equal shape, by split number; the budget is shared by the groups' bytes.

    A group whose share holds fewer experts than one token needs is left out: it would evict on every layer.
    """
    groups: dict[tuple[int, ...], list[Split]] = {}
    for split in splits:
        if split.n_experts:
            key = (split.n_experts, *(part.offset for part in split.parts), split.expert_bytes)
            groups.setdefault(key, []).append(split)
    total = sum(split.n_bytes for group in groups.values() for split in group)
    banks: dict[int, Bank] = {}
    for group in groups.values():
        share = n_bytes * sum(split.n_bytes for split in group) // total
        n_places = min(share // group[0].expert_bytes, len(group) * group[0].n_experts)
        if n_places > 0:
            bank = Bank(device, group, n_places, eviction)
            banks.update({split.number: bank for split in group})
    return banks


def _whole(source: torch.Tensor, target: torch.Tensor) -> Range:
    raw_source, raw_target = source.view(torch.uint8).flatten(), target.view(torch.uint8).flatten()
    return Range(raw_source, 0, raw_target, 0, raw_source.numel())
