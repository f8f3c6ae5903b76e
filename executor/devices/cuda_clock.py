"""A GPU's own clock beside its events': marks inside recorded work, where events would be recorded again each time.

Reading `globaltimer` is a kernel of Triton; the pass's zero is an event. Both clocks count the same nanoseconds from
different moments, so each pass brackets a few stamps by events to find its zero on the clock.
"""

from __future__ import annotations

import importlib

import torch

_N_BRACKETS = 8
_QUEUED_CYCLES = 800_000  # some half a millisecond: brackets that are issued meanwhile follow each other closely


class GpuClock:
    """The clock of one GPU. Call on a stream of it."""

    def __init__(self, device: torch.device) -> None:
        self._kernel = importlib.import_module("executor.stamp_kernels")
        self._stamps = torch.zeros(_N_BRACKETS, dtype=torch.int64, device=device)
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * _N_BRACKETS)]
        self.zero_ns = 0
        """The clock's reading when the pass began."""

    def stamp(self, into: torch.Tensor) -> None:
        """Queue a reading into `into` (1,) int64."""
        self._kernel.stamp(into)

    def align(self, zero: torch.cuda.Event) -> None:
        """Take `zero`, an event recorded just now, for the pass's begin. Waits for the current stream."""
        torch.cuda._sleep(_QUEUED_CYCLES)
        for number, (before, after) in enumerate(zip(self._events[::2], self._events[1::2], strict=True)):
            before.record()
            self.stamp(self._stamps[number : number + 1])
            after.record()
        self._events[-1].synchronize()
        stamps = self._stamps.tolist()
        since_zero = [float(zero.elapsed_time(event)) * 1e6 for event in self._events]
        self.zero_ns = zero_between(stamps, since_zero[::2], since_zero[1::2])


def zero_between(stamps: list[int], before_ns: list[float], after_ns: list[float]) -> int:
    """The clock's reading at zero: `stamps` were taken between two moments, each in ns since zero."""
    earliest = max(stamp - round(after) for stamp, after in zip(stamps, after_ns, strict=True))
    latest = min(stamp - round(before) for stamp, before in zip(stamps, before_ns, strict=True))
    return (earliest + latest) // 2
