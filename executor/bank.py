"""Banks: the device memory of the expert cache. Splits of equal shape share one, under one eviction order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from executor.devices.base import Device, Range, whole_copy
from executor.errors import HprofError
from executor.expert_cache import Eviction, ExpertCache, merge_places
from executor.policies.base import Flags
from executor.weights.splits import Split

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Serving:
    """One batch served from a bank: the uploads that must run first, and where each expert lies."""

    uploads: list[Range]
    n_bytes: int  # of missed experts
    layout: Split  # the split, with its tensors where the bank has them
    place_of: torch.Tensor  # (n_experts,) int32 on the device
    n_hits: int
    n_misses: int


class Bank:
    """Places for single experts of splits that have the same layout.

    What a slot holds `n_experts` times the bank holds `n_places` times: a segment that begins at byte b of a
    slot begins at byte b / n_experts * n_places of the bank, with the same stride.
    """

    def __init__(self, device: Device, splits: Sequence[Split], n_places: int, eviction: Eviction) -> None:
        first = splits[0]
        self.cache = ExpertCache(n_places, eviction)
        self.expert_bytes = first.expert_bytes
        self.n_bytes = n_places * first.expert_bytes
        self.buffer = device.allocate(self.n_bytes, f"the expert cache's bank of {n_places} places")
        shape = (len(splits), first.n_experts)
        n_bytes = shape[0] * shape[1] * 4
        # one row a layer: a row is rewritten a whole ubatch later, when the router has been waited for
        self._on_host = device.host_slab(n_bytes, pinned=True).view(torch.int32).view(shape)
        self._on_device = torch.zeros(shape, dtype=torch.int32, device=device.torch_device)
        self._row = {split.number: row for row, split in enumerate(splits)}
        self._layout = {split.number: _in_bank(split, n_places) for split in splits}

    def serve(self, split: Split, used: Flags) -> Serving | None:
        """Admit a batch's experts; None when they are more than the bank has places."""
        experts = np.flatnonzero(used)
        if not self.cache.can_hold(experts.size):
            return None
        admission = self.cache.admit(split.layer, experts)
        missed = admission.missed
        runs = merge_places(admission.experts[missed], admission.places[missed])
        uploads = [piece for run in runs for piece in self._upload(split, *run)]
        row = self._row[split.number]
        if self._on_host.device.type != "meta":
            places = np.zeros(split.n_experts, dtype=np.int32)
            places[admission.experts] = admission.places
            self._on_host[row].copy_(torch.from_numpy(places))
        n_missed = int(missed.sum())
        uploads.append(whole_copy(self._on_host[row], self._on_device[row]))
        return Serving(
            uploads,
            n_missed * self.expert_bytes,
            self._layout[split.number],
            self._on_device[row],
            experts.size - n_missed,
            n_missed,
        )

    def copy_cached(self, split: Split, cached: Mapping[int, int], slot: torch.Tensor) -> None:
        """Copy cached experts to their places in a slot, inside the device."""
        for here, there in zip(split.segments, self._layout[split.number].segments, strict=True):
            for expert, place in cached.items():
                source, target = there.target_from + place * here.stride, here.target_from + expert * here.stride
                slot[target : target + here.stride].copy_(self.buffer[source : source + here.stride])

    def _upload(self, split: Split, expert: int, place: int, count: int) -> list[Range]:
        return [
            Range(s.source, expert * s.stride, self.buffer, s.target_from + place * s.stride, count * s.stride)
            for s in self._layout[split.number].segments
        ]


def build_banks(
    device: Device, splits: Sequence[Split], n_bytes: int, eviction: Eviction, n_used: Mapping[int, int]
) -> dict[int, Bank]:
    """One bank a group of expert splits of equal shape, by split number; the budget is shared by the groups' bytes.

    `n_used` says how many experts one token of a layer needs. Raises HprofError when a group's share holds
    fewer: it would serve nothing.
    """
    groups: dict[tuple[int, ...], list[Split]] = {}
    for split in splits:
        if split.n_experts:
            places = (number for part in split.parts for number in (part.offset, part.stride))
            groups.setdefault((split.n_experts, split.expert_bytes, *places), []).append(split)
    total = sum(split.n_bytes for group in groups.values() for split in group)
    banks: dict[int, Bank] = {}
    for group in groups.values():
        of_group = sum(split.n_bytes for split in group)
        n_places = min(n_bytes * of_group // total // group[0].expert_bytes, len(group) * group[0].n_experts)
        needed = max(n_used[split.layer] for split in group)
        if n_places < needed:
            enough = -(-needed * group[0].expert_bytes * total // of_group)
            raise HprofError(_too_small(n_bytes, n_places, needed, enough))
        bank = Bank(device, group, n_places, eviction)
        banks.update({split.number: bank for split in group})
    return banks


def _in_bank(split: Split, n_places: int) -> Split:
    """The split laid out for `n_places` experts instead of `n_experts`."""
    packed = len(split.segments) == 1
    parts = tuple(
        part if packed else replace(part, offset=part.offset // split.n_experts * n_places) for part in split.parts
    )
    segments = tuple(replace(s, target_from=s.target_from // split.n_experts * n_places) for s in split.segments)
    return replace(split, parts=parts, segments=segments, n_bytes=n_places * split.expert_bytes)


def _too_small(n_bytes: int, n_places: int, needed: int, enough: int) -> str:
    return (
        f"--moe-cache-mib: each device's share, {n_bytes / _MIB:.1f} MiB, holds {n_places} experts of a layer and one "
        f"token needs {needed}: give at least {-(-enough // _MIB)} MiB for each device"
    )
