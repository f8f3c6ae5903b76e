"""The expert cache: which expert lies where in device memory, what makes room for a new one, and the bank's bytes.

A device's part of `--moe-cache-mib` is shared out: transfer units of equal shape share a bank, under one eviction
order.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

import torch

from executor.arrays import Flags, Int64
from executor.devices.base import CopyRange, Device, Touched, whole_copy_range
from executor.errors import CacheTooSmallError
from executor.policies.base import Eviction
from executor.units import format_bytes
from executor.weights.transfer_units import TransferUnit

ExpertKey = tuple[int, int]
"""(layer, expert)."""

_STALE_SHARE: Final = 4  # a heap this many times as long as what it ranks is rebuilt
_MIB: Final = 1 << 20


class EvictionOrder(Protocol):
    """Ranks what is cached by how dispensable it is."""

    def use(self, key: ExpertKey) -> None:
        """A cached expert is used, or a new one comes in."""

    def evict(self, in_use: Collection[ExpertKey]) -> ExpertKey:
        """Take out the most dispensable expert that is not in use."""


class LeastRecentlyUsed:
    """What was used longest ago."""

    def __init__(self) -> None:
        self._keys: OrderedDict[ExpertKey, None] = OrderedDict()  # oldest use first

    def use(self, key: ExpertKey) -> None:
        self._keys[key] = None
        self._keys.move_to_end(key)

    def evict(self, in_use: Collection[ExpertKey]) -> ExpertKey:
        victim = next(key for key in self._keys if key not in in_use)
        del self._keys[victim]
        return victim


class LeastFrequentlyUsed:
    """What was used least often (ties: longest ago); counts uses also of what is no longer cached.

    A heap, because a bank may hold thousands of experts.
    """

    def __init__(self) -> None:
        self._uses: Counter[ExpertKey] = Counter()
        self._rank: dict[ExpertKey, tuple[int, int]] = {}  # of what is cached: (uses, when it was used last)
        self._heap: list[tuple[tuple[int, int], ExpertKey]] = []  # of ranks, those since overtaken among them
        self._now = 0

    def use(self, key: ExpertKey) -> None:
        self._now += 1
        self._uses[key] += 1
        self._rank[key] = (self._uses[key], self._now)
        heappush(self._heap, (self._rank[key], key))
        if len(self._heap) > _STALE_SHARE * len(self._rank):
            self._heap = [(rank, key) for key, rank in self._rank.items()]
            heapify(self._heap)

    def evict(self, in_use: Collection[ExpertKey]) -> ExpertKey:
        spared = []
        while True:
            rank, key = heappop(self._heap)
            if self._rank.get(key) != rank:
                continue
            if key not in in_use:
                break
            spared.append((rank, key))
        for entry in spared:
            heappush(self._heap, entry)
        del self._rank[key]
        return key


def new_eviction_order(eviction: Eviction) -> EvictionOrder:
    """The order of an empty cache."""
    return LeastRecentlyUsed() if eviction == "lru" else LeastFrequentlyUsed()


@dataclass(frozen=True, slots=True)
class Admission:
    """A batch's experts and their places; `missed` ones must be uploaded before they are read.

    Lists, as nearly all batches are a token's few experts, and the link waits until they are known.
    """

    experts: list[int]
    places: list[int]
    missed: list[bool]

    @property
    def uploads(self) -> list[tuple[int, int]]:
        """(expert, place) of those that were missed."""
        return [(e, p) for e, p, missed in zip(self.experts, self.places, self.missed, strict=True) if missed]


class ExpertCacheIndex:
    """Places for `n_places` experts, shared by all layers of equal expert size.

    `lru` evicts what was used longest ago; `frequency` what was used least often (ties: longest ago). What
    the batch under way uses is never evicted.
    """

    def __init__(self, n_places: int, eviction: Eviction) -> None:
        self.n_places = n_places
        self._place: dict[ExpertKey, int] = {}
        self._order = new_eviction_order(eviction)
        self._free = list(range(n_places - 1, -1, -1))

    def can_hold(self, n_experts: int) -> bool:
        """Whether one batch's experts fit at once."""
        return n_experts <= self.n_places

    def admit(self, layer: int, experts: Sequence[int]) -> Admission:
        """Find or make places for a batch's distinct experts (no more than `n_places`)."""
        keys = [(layer, expert) for expert in experts]
        missed = [key not in self._place for key in keys]
        for key, is_missed in zip(keys, missed, strict=True):
            if not is_missed:
                self._order.use(key)
        in_use = frozenset(keys)
        for key, is_missed in zip(keys, missed, strict=True):
            if is_missed:
                self._place[key] = self._free.pop() if self._free else self._place.pop(self._order.evict(in_use))
                self._order.use(key)
        return Admission(list(experts), [self._place[key] for key in keys], missed)

    def lookup(self, layer: int, experts: Sequence[int] | Int64) -> dict[int, int]:
        """The places of those experts that are cached; changes nothing."""
        numbers = experts if isinstance(experts, Sequence) else experts.tolist()
        places = self._place
        return {expert: places[layer, expert] for expert in numbers if (layer, expert) in places}


def merge_places(uploads: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Uploads (expert, place) as (first expert, first place, count): neighbours that stay so move as one copy."""
    runs: list[tuple[int, int, int]] = []
    for expert, place in sorted(uploads):
        if runs:
            first, first_place, count = runs[-1]
            if (expert, place) == (first + count, first_place + count):
                runs[-1] = (first, first_place, count + 1)
                continue
        runs.append((expert, place, 1))
    return runs


@dataclass(frozen=True, slots=True)
class CachedBatch:
    """One batch served from a bank: the uploads that must run first, and where each expert lies."""

    uploads: list[CopyRange]
    n_bytes: int  # of missed experts
    layout: TransferUnit  # the unit, with its tensors where the bank has them
    place_of: torch.Tensor  # (n_experts,) int32 on the device; means nothing for experts that the batch does not use
    places: list[tuple[int, int]]  # (expert, place) of all that the batch uses
    n_hits: int
    n_misses: int


class ExpertCacheBuffer:
    """Places for single experts of units that have the same layout.

    What a slot holds `n_experts` times the bank holds `n_places` times: a segment that begins at byte b of a
    slot begins at byte b / n_experts * n_places of the bank, with the same stride.
    """

    def __init__(self, device: Device, units: Sequence[TransferUnit], n_places: int, eviction: Eviction) -> None:
        first = units[0]
        self._device = device
        self.cache = ExpertCacheIndex(n_places, eviction)
        self.expert_bytes = first.expert_bytes
        self.n_bytes = n_places * first.expert_bytes
        self.buffer = device.allocate(self.n_bytes, f"the expert cache's bank of {n_places} places")
        shape = (len(units), first.n_experts)
        n_bytes = shape[0] * shape[1] * 4
        # one row a layer: a row is rewritten a whole ubatch later, when the router has been waited for
        on_host = device.host_slab(n_bytes, pinned=True).view(torch.int32).view(shape).zero_()
        self._places = None if on_host.device.type == "meta" else on_host.numpy()
        self._on_device = torch.zeros(shape, dtype=torch.int32, device=device.torch_device)
        self._row_copies = [whole_copy_range(*rows) for rows in zip(on_host, self._on_device, strict=True)]
        self._row = {unit.number: row for row, unit in enumerate(units)}
        self._layout = {unit.number: _laid_out_for(unit, n_places) for unit in units}

    def serve(self, unit: TransferUnit, used: Flags) -> CachedBatch | None:
        """Admit a batch's experts; None when they are more than the bank has places."""
        experts = used.nonzero()[0]
        if not self.cache.can_hold(experts.size):
            return None
        admission = self.cache.admit(unit.layer, experts.tolist())
        missed = admission.uploads
        uploads = self.uploads_of(unit, missed)
        row = self._row[unit.number]
        self._device.on_thread("write the experts' places", lambda: Touched(writes=[self._row_copies[row].source]))
        if self._places is not None:
            self._places[row, experts] = admission.places
        uploads.append(self._row_copies[row])
        return CachedBatch(
            uploads,
            len(missed) * self.expert_bytes,
            self._layout[unit.number],
            self._on_device[row],
            list(zip(admission.experts, admission.places, strict=True)),
            experts.size - len(missed),
            len(missed),
        )

    def copy_cached(self, unit: TransferUnit, cached: Mapping[int, int], slot: torch.Tensor) -> None:
        """Copy cached experts to their places in a slot, inside the device."""
        for here, there in zip(unit.segments, self._layout[unit.number].segments, strict=True):
            for expert, place in cached.items():
                source, target = there.target_from + place * here.stride, here.target_from + expert * here.stride
                slot[target : target + here.stride].copy_(self.buffer[source : source + here.stride])

    def uploads_of(self, unit: TransferUnit, places: Sequence[tuple[int, int]]) -> list[CopyRange]:
        """The copies that put experts into their places, (expert, place); neighbours merged."""
        return [piece for run in merge_places(places) for piece in self._upload(unit, *run)]

    def _upload(self, unit: TransferUnit, expert: int, place: int, count: int) -> list[CopyRange]:
        return [
            CopyRange(s.source, expert * s.stride, self.buffer, s.target_from + place * s.stride, count * s.stride)
            for s in self._layout[unit.number].segments
        ]


def _laid_out_for(unit: TransferUnit, n_places: int) -> TransferUnit:
    """The unit laid out for `n_places` experts instead of `n_experts`."""
    packed = len(unit.segments) == 1
    parts = tuple(
        part if packed else replace(part, offset=part.offset // unit.n_experts * n_places) for part in unit.parts
    )
    segments = tuple(replace(s, target_from=s.target_from // unit.n_experts * n_places) for s in unit.segments)
    return replace(unit, parts=parts, segments=segments, n_bytes=n_places * unit.expert_bytes)


def build_banks(
    device: Device, units: Sequence[TransferUnit], n_bytes: int, eviction: Eviction, n_used: Mapping[int, int]
) -> dict[int, ExpertCacheBuffer]:
    """One bank a group of expert units of equal shape, by unit number. Raises as `shared_out` does."""
    banks: dict[int, ExpertCacheBuffer] = {}
    for group, n_places in shared_out(units, n_bytes, n_used):
        bank = ExpertCacheBuffer(device, group, n_places, eviction)
        banks.update({unit.number: bank for unit in group})
    return banks


def shared_out(
    units: Sequence[TransferUnit], n_bytes: int, n_used: Mapping[int, int]
) -> Iterator[tuple[list[TransferUnit], int]]:
    """Groups of expert units of equal shape, each with the places of its bank; the budget is shared by their bytes.

    `n_used` says how many experts one token of a layer needs. Raises CacheTooSmallError when a group's share holds
    fewer: it would serve nothing.
    """
    groups: dict[tuple[int, ...], list[TransferUnit]] = {}
    for unit in units:
        if unit.n_experts:
            places = (number for part in unit.parts for number in (part.offset, part.stride))
            groups.setdefault((unit.n_experts, unit.expert_bytes, *places), []).append(unit)
    total = sum(unit.n_bytes for group in groups.values() for unit in group)
    for group in groups.values():
        of_group = sum(unit.n_bytes for unit in group)
        n_places = min(n_bytes * of_group // total // group[0].expert_bytes, len(group) * group[0].n_experts)
        needed = max(n_used[unit.layer] for unit in group)
        if n_places < needed:
            enough = -(-needed * group[0].expert_bytes * total // of_group)
            raise CacheTooSmallError(_too_small(n_bytes, n_places, needed, enough))
        yield group, n_places


def _too_small(n_bytes: int, n_places: int, needed: int, enough: int) -> str:
    return (
        f"--moe-cache-mib: each device's share, {format_bytes(n_bytes)}, holds {n_places} experts of a layer and one "
        f"token needs {needed}: give at least {-(-enough // _MIB)} MiB for each device"
    )
