"""Which cached expert makes room for a new one: the one used longest ago, or the one used least often."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection
from heapq import heapify, heappop, heappush
from typing import Final, Literal, Protocol

Eviction = Literal["lru", "frequency"]
Key = tuple[int, int]
"""(layer, expert)."""

_STALE_SHARE: Final = 4  # a heap this many times as long as what it ranks is rebuilt


class Order(Protocol):
    """Ranks what is cached by how dispensable it is."""

    def use(self, key: Key) -> None:
        """A cached expert is used, or a new one comes in."""

    def evict(self, in_use: Collection[Key]) -> Key:
        """Take out the most dispensable expert that is not in use."""


class Oldest:
    """What was used longest ago."""

    def __init__(self) -> None:
        self._keys: OrderedDict[Key, None] = OrderedDict()  # oldest use first

    def use(self, key: Key) -> None:
        self._keys[key] = None
        self._keys.move_to_end(key)

    def evict(self, in_use: Collection[Key]) -> Key:
        victim = next(key for key in self._keys if key not in in_use)
        del self._keys[victim]
        return victim


class Rarest:
    """What was used least often (ties: longest ago); counts uses also of what is no longer cached.

    A heap, because a bank may hold thousands of experts.
    """

    def __init__(self) -> None:
        self._uses: Counter[Key] = Counter()
        self._rank: dict[Key, tuple[int, int]] = {}  # of what is cached: (uses, when it was used last)
        self._heap: list[tuple[tuple[int, int], Key]] = []  # of ranks, those since overtaken among them
        self._now = 0

    def use(self, key: Key) -> None:
        self._now += 1
        self._uses[key] += 1
        self._rank[key] = (self._uses[key], self._now)
        heappush(self._heap, (self._rank[key], key))
        if len(self._heap) > _STALE_SHARE * len(self._rank):
            self._heap = [(rank, key) for key, rank in self._rank.items()]
            heapify(self._heap)

    def evict(self, in_use: Collection[Key]) -> Key:
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


def new_order(eviction: Eviction) -> Order:
    """The order of an empty cache."""
    return Oldest() if eviction == "lru" else Rarest()
