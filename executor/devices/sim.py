"""The `sim` device: a virtual clock and a cost model; no arithmetic, so any model runs on a laptop.

A launch takes max(flops / rate, bytes / memory rate) + a fixed launch time on the device; a copy takes
latency + bytes / link. The host's own clock advances by `host_call_us` with each call, and jumps when it
waits for an event. Tensors are torch "meta" tensors: sizes without storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from executor.devices.base import STREAMS, CopyRange, Device, Event, ReplayKey, StreamName, Touches, Work


@dataclass(frozen=True, slots=True)
class SimMachine:
    """The rates of an imagined machine."""

    gemm_tflop_s: float = 100.0
    memory_gb_s: float = 1000.0
    link_gb_s: float = 25.0
    link_latency_us: float = 6.0
    launch_us: float = 10.0  # fixed device time of one launched step
    host_call_us: float = 5.0
    host_gflop_s: float = 500.0
    host_memory_gb_s: float = 50.0
    memory_bytes: int | None = None


class SimHostClock:
    """The issuing thread's virtual time; devices of one run share it."""

    def __init__(self) -> None:
        self.now_ns = 0.0


class SimEvent(Event):
    """A point of virtual time."""

    __slots__ = ("at_ns",)

    def __init__(self) -> None:
        self.at_ns = 0.0


class SimLink:
    """One direction of a bus: transfers take turns, and one that still waits for its stream keeps no other back."""

    def __init__(self) -> None:
        self._busy_ns: list[tuple[float, float]] = []  # sorted, apart, none over before the host's present time

    def take(self, ready_ns: float, duration_ns: float, now_ns: float) -> float:
        """Transfer in the first gap of `duration_ns` from `ready_ns` on; gives the end. Nothing is ready before now."""
        self._busy_ns = [(start, end) for start, end in self._busy_ns if end > now_ns]
        at = ready_ns
        for start, end in self._busy_ns:
            if at + duration_ns <= start:
                break
            at = max(at, end)
        self._busy_ns = list(_joined(sorted([*self._busy_ns, (at, at + duration_ns)])))
        return at + duration_ns


def _joined(intervals: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Sorted intervals, those that touch as one."""
    first, last = None, 0.0
    for start, end in intervals:
        if first is not None and start > last:
            yield first, last
            first = None
        first, last = (start if first is None else first), end
    if first is not None:
        yield first, last


class SimDevice(Device):
    """Keeps one time cursor a stream, a link in each direction, and the host's clock."""

    kind = "sim"

    def __init__(self, index: int = 0, machine: SimMachine | None = None, host: SimHostClock | None = None) -> None:
        self._host = host or SimHostClock()
        super().__init__()
        self.index = index
        self.machine = machine or SimMachine()
        self.torch_device = torch.device("meta")
        self.link_gb_s = self.machine.link_gb_s
        self._at_ns: dict[StreamName, float] = dict.fromkeys(STREAMS, 0.0)
        self._links = {"in": SimLink(), "out": SimLink()}

    def allocate(self, n_bytes: int, label: str) -> torch.Tensor:
        self._check_room(self.machine.memory_bytes, n_bytes, label)
        buffer = torch.empty(n_bytes, dtype=torch.uint8, device="meta")
        return self._hold(buffer)

    def peak_bytes(self) -> int | None:
        return None  # tensors that `allocate` did not hand out are nobody's to count here

    def host_slab(self, n_bytes: int, *, pinned: bool) -> torch.Tensor:
        return torch.empty(n_bytes, dtype=torch.uint8, device="meta")

    def event(self) -> SimEvent:
        return SimEvent()

    def record(self, stream: StreamName, event: Event) -> None:
        assert isinstance(event, SimEvent)
        event.at_ns = max(self._at_ns[stream], self._host_call())

    def wait(self, stream: StreamName, event: Event) -> None:
        assert isinstance(event, SimEvent)
        self._at_ns[stream] = max(self._at_ns[stream], event.at_ns)

    def synchronize(self, event: Event) -> None:
        assert isinstance(event, SimEvent)
        self._host.now_ns = max(self._host.now_ns, event.at_ns)

    def time_ns(self, event: Event) -> int:
        assert isinstance(event, SimEvent)
        return round(event.at_ns)

    def launch(
        self,
        stream: StreamName,
        fn: Callable[[], None],
        work: Work,
        key: ReplayKey | None = None,
        touches: Touches | None = None,
    ) -> None:
        m = self.machine
        if stream == "host":
            duration = max(work.flops / m.host_gflop_s, work.n_bytes / m.host_memory_gb_s)
        else:
            duration = max(work.flops / (m.gemm_tflop_s * 1e3), work.n_bytes / m.memory_gb_s)
            duration += m.launch_us * 1e3
        self._at_ns[stream] = max(self._at_ns[stream], self._host_call()) + duration

    def copy_in(self, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        for piece in ranges:
            self._transfer(stream, "in", piece.n_bytes)

    def copy_out(self, stream: StreamName, source: torch.Tensor, target: torch.Tensor) -> None:
        self._transfer(stream, "out", source.numel() * source.element_size())

    def _transfer(self, stream: StreamName, direction: str, n_bytes: int) -> None:
        now_ns = self._host_call()
        duration_ns = self.machine.link_latency_us * 1e3 + n_bytes / self.machine.link_gb_s
        self._at_ns[stream] = self._links[direction].take(max(self._at_ns[stream], now_ns), duration_ns, now_ns)

    def _host_call(self) -> float:
        self._host.now_ns += self.machine.host_call_us * 1e3
        return self._host.now_ns

    def now_ns(self) -> int:
        return round(self._host.now_ns)

    def begin_pass(self) -> None:
        self._at_ns = dict.fromkeys(STREAMS, 0.0)
        self._links = {"in": SimLink(), "out": SimLink()}
        self._host.now_ns = 0.0

    def drain(self) -> None:
        self._host.now_ns = max(self._host.now_ns, *self._at_ns.values())

    def recycle(self) -> None:
        """Events are plain values here."""
