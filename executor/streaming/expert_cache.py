"""The expert cache's bookkeeping: which expert of which layer lies at which place of a bank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from executor.streaming.eviction import Eviction, Key, new_order


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


class ExpertCache:
    """Places for `n_places` experts, shared by all layers of equal expert size.

    `lru` evicts what was used longest ago; `frequency` what was used least often (ties: longest ago). What
    the batch under way uses is never evicted.
    """

    def __init__(self, n_places: int, eviction: Eviction) -> None:
        self.n_places = n_places
        self._place: dict[Key, int] = {}
        self._order = new_order(eviction)
        self._free = list(range(n_places - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._place)

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

    def lookup(self, layer: int, experts: Sequence[int] | NDArray[np.int64]) -> dict[int, int]:
        """The places of those experts that are cached; changes nothing."""
        found = {int(expert): self._place.get((layer, int(expert))) for expert in experts}
        return {expert: place for expert, place in found.items() if place is not None}


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
