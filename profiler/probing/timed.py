"""Times what is issued on a device, the one stopwatch of the rates that a probe measures by themselves; and tells how
much of the processors' time other programs took meanwhile.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence

import psutil

from executor.devices.base import Device, StreamName
from profiler.predicting.probe import Measure

_REPETITIONS = 5


def stream_ns(
    device: Device, stream: StreamName, issue: Callable[[], None], beside: Callable[[], None] | None = None
) -> list[int]:
    """What `issue` takes on a stream, repetition by repetition, after one that is not counted.

    `beside` is issued before it, for another stream, and must last longer.
    """
    return [_once(device, stream, issue, beside) for _ in range(_REPETITIONS + 1)][1:]


def _once(device: Device, stream: StreamName, issue: Callable[[], None], beside: Callable[[], None] | None) -> int:
    device.begin_pass()
    if beside is not None:
        beside()
    begin, end = device.event(), device.event()
    device.record(stream, begin)
    issue()
    device.record(stream, end)
    device.drain()
    taken = device.time_ns(end) - device.time_ns(begin)
    device.recycle()
    return max(taken, 1)


def rate(what: str, at: str, unit: str, amount: float, times_ns: Sequence[int]) -> Measure:
    """So much an ns (so `amount` bytes give GB/s), from the times of some repetitions."""
    rates = [amount / ns for ns in times_ns]
    return Measure(what, at, unit, statistics.median(rates), min(rates), max(rates))


def cost(what: str, at: str, unit: str, times_ns: Sequence[int], count: float) -> Measure:
    """What each of `count` took; `unit` is us or ms."""
    each = [ns / count / {"us": 1e3, "ms": 1e6}[unit] for ns in times_ns]
    return Measure(what, at, unit, statistics.median(each), min(each), max(each))


class OthersWork:
    """How much other programs compute, from when it is made."""

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
