"""Memory of one device that was freed, and which operation used it last: for whoever gets it next."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from executor.passes import OrderingRecord
from profiler.watching.issued import StreamKey


class FreedRange(NamedTuple):
    """Bytes `address` to `end`; `last` is what used them last on the stream that they were allocated on."""

    address: int
    end: int
    stream: StreamKey
    last: OrderingRecord


class FreedRanges:
    """Freed ranges of a device, none over another: what is freed later was given away before."""

    def __init__(self) -> None:
        self._addresses: list[int] = []
        self._ranges: list[FreedRange] = []

    def add(self, freed: FreedRange) -> None:
        """Remember a range."""
        self.take(freed.address, freed.end)
        at = bisect_left(self._addresses, freed.address)
        self._addresses.insert(at, freed.address)
        self._ranges.insert(at, freed)

    def take(self, address: int, end: int) -> list[FreedRange]:
        """All that overlaps with these bytes, which are in use again."""
        first = bisect_left(self._addresses, address)
        if first and self._ranges[first - 1].end > address:
            first -= 1
        last = bisect_left(self._addresses, end)
        taken = self._ranges[first:last]
        del self._addresses[first:last], self._ranges[first:last]
        return taken
