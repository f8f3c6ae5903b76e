"""How much of the processors' time other programs took while something was measured."""

from __future__ import annotations

import os
import time

import psutil


class OthersWork:
    """Looks on from when it is made."""

    def __init__(self) -> None:
        self._begun, self._busy, self._own = time.perf_counter(), _busy_seconds(), _own_seconds()

    def share(self) -> float:
        """Of the time that all processors had since then, between 0 and 1."""
        elapsed = (time.perf_counter() - self._begun) * (psutil.cpu_count() or 1)
        others = _busy_seconds() - self._busy - (_own_seconds() - self._own)
        return min(max(others / max(elapsed, 1e-9), 0.0), 1.0)


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def _own_seconds() -> float:
    own = os.times()
    return own.user + own.system + own.children_user + own.children_system
