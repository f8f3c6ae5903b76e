"""A CPU device that records whatever is issued to a stream and replays it, as CUDA graphs do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from executor import placed_model
from executor.devices.base import CopyRange, RecordedWork, StreamName, Work
from executor.devices.cpu import CpuDevice, Latch


class Calls(RecordedWork):
    """What was issued, in order."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []


class Recorder:
    """Once installed, CPU devices record. Counts what they do."""

    def __init__(self, *, holds: bool = False) -> None:
        self._holds = holds
        self.n_recorded = self.n_replayed = self.n_issued = self.n_held = 0
        self._open: Calls | None = None
        self._launch, self._in, self._out = CpuDevice.launch, CpuDevice.copy_in, CpuDevice.copy_out

    def install(self, patch: pytest.MonkeyPatch) -> None:
        def method(function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda device, *args, **named: function(device, *args, **named)

        patch.setattr(placed_model, "flash_serves", lambda keys: True)
        patch.setattr(CpuDevice, "replays", True)
        patch.setattr(CpuDevice, "records_work", True)
        patch.setattr(CpuDevice, "holds", self._holds)
        for name in ("launch", "copy_in", "copy_out", "record_work", "replay", "hold", "stamp", "stamped_ns"):
            patch.setattr(CpuDevice, name, method(getattr(self, name)))

    def launch(self, device: CpuDevice, stream: StreamName, fn: Callable[[], None], *rest: Any, **named: Any) -> None:
        self._issue(partial(self._launch, device, stream, fn, Work()))

    def copy_in(self, device: CpuDevice, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        self._issue(partial(self._in, device, stream, ranges))

    def copy_out(self, device: CpuDevice, stream: StreamName, source: torch.Tensor, target: torch.Tensor) -> None:
        self._issue(partial(self._out, device, stream, source, target))

    def record_work(self, device: CpuDevice, stream: StreamName, issue: Callable[[], None]) -> Calls:
        self.n_recorded += 1
        recorded = self._open = Calls()
        try:
            issue()
        finally:
            self._open = None
        return recorded

    def replay(self, device: CpuDevice, stream: StreamName, recording: RecordedWork) -> None:
        assert isinstance(recording, Calls)
        self.n_replayed += 1
        self._issue(partial(_run_all, recording.calls))

    def hold(self, device: CpuDevice, stream: StreamName) -> Callable[[], None]:
        self.n_held += 1
        latch = Latch()
        self._launch(device, stream, latch.wait, Work())
        return latch.open

    def stamp(self, device: CpuDevice, stream: StreamName, into: torch.Tensor) -> None:
        self.launch(device, stream, partial(_read_clock, into))

    def stamped_ns(self, device: CpuDevice, stamp: int) -> int:
        return stamp - device._zero_ns

    def _issue(self, call: Callable[[], None]) -> None:
        self.n_issued += self._open is None
        if self._open is not None:
            self._open.calls.append(call)
        else:
            call()


def _read_clock(into: torch.Tensor) -> None:
    into.fill_(time.perf_counter_ns())


def _run_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()
