"""Times what is issued on a device: the one stopwatch of the rates that a probe measures by themselves."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

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
