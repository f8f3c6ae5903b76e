"""A bank: the device memory of the expert cache, for the experts of splits that have the same layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from executor.devices.base import Device, Range, whole_copy
from executor.policies.base import Flags
from executor.streaming.eviction import Eviction
from executor.streaming.expert_cache import ExpertCache, merge_places
from executor.weights.splits import Split


@dataclass(frozen=True, slots=True)
class Serving:
    """One batch served from a bank: the uploads that must run first, and where each expert lies."""

    uploads: list[Range]
    n_bytes: int  # of missed experts
    layout: Split  # the split, with its tensors where the bank has them
    place_of: torch.Tensor  # (n_experts,) int32 on the device; means nothing for experts that the batch does not use
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
        on_host = device.host_slab(n_bytes, pinned=True).view(torch.int32).view(shape).zero_()
        self._places = None if on_host.device.type == "meta" else on_host.numpy()
        self._on_device = torch.zeros(shape, dtype=torch.int32, device=device.torch_device)
        self._row_copies = [whole_copy(*rows) for rows in zip(on_host, self._on_device, strict=True)]
        self._row = {split.number: row for row, split in enumerate(splits)}
        self._layout = {split.number: _in_bank(split, n_places) for split in splits}

    def serve(self, split: Split, used: Flags) -> Serving | None:
        """Admit a batch's experts; None when they are more than the bank has places."""
        experts = np.flatnonzero(used)
        if not self.cache.can_hold(experts.size):
            return None
        admission = self.cache.admit(split.layer, experts.tolist())
        missed = admission.uploads
        uploads = [piece for run in merge_places(missed) for piece in self._upload(split, *run)]
        row = self._row[split.number]
        if self._places is not None:
            self._places[row, experts] = admission.places
        uploads.append(self._row_copies[row])
        return Serving(
            uploads,
            len(missed) * self.expert_bytes,
            self._layout[split.number],
            self._on_device[row],
            experts.size - len(missed),
            len(missed),
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


def _in_bank(split: Split, n_places: int) -> Split:
    """The split laid out for `n_places` experts instead of `n_experts`."""
    packed = len(split.segments) == 1
    parts = tuple(
        part if packed else replace(part, offset=part.offset // split.n_experts * n_places) for part in split.parts
    )
    segments = tuple(replace(s, target_from=s.target_from // split.n_experts * n_places) for s in split.segments)
    return replace(split, parts=parts, segments=segments, n_bytes=n_places * split.expert_bytes)
