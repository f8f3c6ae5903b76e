"""The embedded device: worker threads as streams, a paced memcpy as the bus, real arithmetic, real clocks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from executor.devices.base import STREAMS, Device, Event, Range, ReplayKey, StreamName, Work
from executor.devices.link import PacedLink
from executor.devices.worker import HostEvent, StreamWorker
from executor.errors import HprofError


class CpuDevice(Device):
    """A simulated GPU in host memory. Copies cross a link of `link_gb_s`; compute uses `n_threads` cores."""

    kind = "cpu"

    def __init__(
        self,
        index: int = 0,
        *,
        link_gb_s: float = 8.0,
        link_latency_us: float = 10.0,
        n_threads: int | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        super().__init__()
        self.index = index
        self.torch_device = torch.device("cpu")
        self.link_gb_s = link_gb_s
        self.memory_bytes = memory_bytes
        self.n_threads = n_threads or max(1, (os.cpu_count() or 2) - 1)
        self._into = PacedLink(link_gb_s, link_latency_us)
        self._out_of = PacedLink(link_gb_s, link_latency_us)
        threads = {"compute": self.n_threads, "copy": 1, "host": self.n_threads}
        self._workers = {name: StreamWorker(f"hprof-{index}-{name}", threads[name]) for name in STREAMS}
        self._events: list[HostEvent] = []
        self._pool: list[HostEvent] = []
        self._zero_ns = time.perf_counter_ns()

    def allocate(self, n_bytes: int, label: str) -> torch.Tensor:
        if self.memory_bytes is not None and self.reserved_bytes + n_bytes > self.memory_bytes:
            free = self.memory_bytes - self.reserved_bytes
            raise HprofError(
                f"device {self.index} has {free:,} bytes free and {label} needs {n_bytes:,}: "
                "keep fewer layers resident (-ot, -ncmoe), use a smaller -ub, or raise the memory limit"
            )
        return self._hold(torch.empty(n_bytes, dtype=torch.uint8))

    def peak_bytes(self) -> int | None:
        return None  # tensors that `allocate` did not hand out are nobody's to count here

    def host_slab(self, n_bytes: int, *, pinned: bool) -> torch.Tensor:
        return torch.empty(n_bytes, dtype=torch.uint8)

    def event(self) -> HostEvent:
        event = self._pool.pop() if self._pool else HostEvent()
        self._events.append(event)
        return event

    def record(self, stream: StreamName, event: Event) -> None:
        assert isinstance(event, HostEvent)
        event.mark_recorded()
        self._workers[stream].submit(event.happen)

    def wait(self, stream: StreamName, event: Event) -> None:
        assert isinstance(event, HostEvent)
        self._workers[stream].submit(event.wait)

    def synchronize(self, event: Event) -> None:
        assert isinstance(event, HostEvent)
        event.wait()

    def query(self, event: Event) -> bool:
        assert isinstance(event, HostEvent)
        return event.is_done()

    def time_ns(self, event: Event) -> int:
        assert isinstance(event, HostEvent)
        return event.at_ns - self._zero_ns

    def launch(self, stream: StreamName, fn: Callable[[], None], work: Work, key: ReplayKey | None = None) -> None:
        self._workers[stream].submit(fn)

    def copy_in(self, stream: StreamName, ranges: Sequence[Range]) -> None:
        self._workers[stream].submit(partial(self._into.transfer, ranges, time.perf_counter_ns()))

    def copy_out(self, stream: StreamName, source: torch.Tensor, target: torch.Tensor) -> None:
        raw_source, raw_target = source.view(torch.uint8).flatten(), target.view(torch.uint8).flatten()
        ranges = [Range(raw_source, 0, raw_target, 0, raw_source.numel())]
        self._workers[stream].submit(partial(self._out_of.transfer, ranges, time.perf_counter_ns()))

    def now_ns(self) -> int:
        return time.perf_counter_ns() - self._zero_ns

    def begin_pass(self) -> None:
        self.drain()
        self._zero_ns = time.perf_counter_ns()

    def drain(self) -> None:
        for worker in self._workers.values():
            worker.drain()
        for worker in self._workers.values():
            worker.raise_failure()

    def recycle(self) -> None:
        for event in self._events:
            event.reset()
        self._pool.extend(self._events)
        self._events.clear()

    def close(self) -> None:
        for worker in self._workers.values():
            worker.stop()
        for event in self._events:
            event.happen()  # its record may have been dropped, and a stream may be waiting for it
        for worker in self._workers.values():
            worker.join()
