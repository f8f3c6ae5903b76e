"""A paced bus: copies of real bytes that take as long as a link of a chosen speed would, without burning a core."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from executor.devices.base import Range

_CHUNK_BYTES = 1 << 20  # a long copy is paced in steps, so that bytes arrive over time as they do with DMA
_BACKDATE_NS = 400_000  # time.sleep oversleeps by up to this much; a copy queued behind another forgives it


class PacedLink:
    """One direction of one device's bus: transfers are served one after the other.

    A transfer of n bytes takes latency + n / speed. Each holds the link from the moment it starts, so two
    streams share the speed as they share one copy engine.
    """

    def __init__(self, gb_s: float, latency_us: float) -> None:
        self._ns_per_byte = 1.0 / gb_s
        self._latency_ns = int(latency_us * 1000)
        self._free_ns = 0
        self._lock = threading.Lock()

    def transfer(self, ranges: Sequence[Range], queued_ns: int) -> None:
        """Copy `ranges`, taking the time of the link. `queued_ns`: when the copy was issued (perf_counter)."""
        for piece in ranges:
            self._transfer_one(piece, queued_ns)

    def _transfer_one(self, piece: Range, queued_ns: int) -> None:
        with self._lock:
            now = time.perf_counter_ns()
            late = now - self._free_ns
            was_waiting = 0 <= late < _BACKDATE_NS and queued_ns <= self._free_ns
            start = self._free_ns if was_waiting else max(now, self._free_ns)
            self._free_ns = start + self._latency_ns + int(piece.n_bytes * self._ns_per_byte)
            self._move(piece, start + self._latency_ns)
            _sleep_until(self._free_ns)

    def _move(self, piece: Range, start_ns: int) -> None:
        source = piece.source[piece.source_from : piece.source_from + piece.n_bytes]
        target = piece.target[piece.target_from : piece.target_from + piece.n_bytes]
        for offset in range(0, piece.n_bytes, _CHUNK_BYTES):
            end = min(offset + _CHUNK_BYTES, piece.n_bytes)
            target[offset:end].copy_(source[offset:end])
            if end < piece.n_bytes:
                _sleep_until(start_ns + int(end * self._ns_per_byte))


def _sleep_until(deadline_ns: int) -> None:
    remaining = deadline_ns - time.perf_counter_ns()
    if remaining > 0:
        time.sleep(remaining / 1e9)
