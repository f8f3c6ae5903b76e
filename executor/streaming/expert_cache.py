"""The expert cache's bookkeeping: which expert of which layer lies at which place of a bank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from executor.streaming.eviction import Eviction, Key, new_order


@dataclass(frozen=True, slots=True)
class Admission:
    """A batch's experts and their places; `missed` ones must be uploaded before they are read."""

    experts: NDArray[np.int64]
    places: NDArray[np.int64]
    missed: NDArray[np.bool_]


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

    def admit(self, layer: int, experts: Sequence[int] | NDArray[np.int64]) -> Admission:
        """Find or make places for a batch's distinct experts (no more than `n_places`)."""
        chosen = np.asarray(experts, dtype=np.int64)
        keys = [(layer, expert) for expert in chosen.tolist()]
        missing = [key for key in keys if key not in self._place]
        missed = np.array([key not in self._place for key in keys], dtype=np.bool_)
        for key in keys:
            if key in self._place:
                self._order.use(key)
        in_use = frozenset(keys)
        for key in missing:
            self._place[key] = self._free.pop() if self._free else self._place.pop(self._order.evict(in_use))
            self._order.use(key)
        places = np.array([self._place[key] for key in keys], dtype=np.int64)
        return Admission(chosen, places, missed)

    def lookup(self, layer: int, experts: Sequence[int] | NDArray[np.int64]) -> dict[int, int]:
        """The places of those experts that are cached; changes nothing."""
        found = {int(expert): self._place.get((layer, int(expert))) for expert in experts}
        return {expert: place for expert, place in found.items() if place is not None}


def merge_places(experts: NDArray[np.int64], places: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Uploads as (first expert, first place, count): neighbours that stay neighbours move as one copy."""
    if experts.size == 0:
        return []
    order = np.argsort(experts)
    experts, places = experts[order], places[order]
    breaks = np.flatnonzero((np.diff(experts) != 1) | (np.diff(places) != 1)) + 1
    firsts = np.concatenate(([0], breaks))
    counts = np.diff(np.concatenate((firsts, [experts.size])))
    return [(int(experts[i]), int(places[i]), int(n)) for i, n in zip(firsts, counts, strict=True)]
