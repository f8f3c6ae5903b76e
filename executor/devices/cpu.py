"""The embedded device: worker threads as streams, a paced memcpy as the bus, real arithmetic, real clocks.

Copies of real bytes take as long as a link of the chosen speed would, and sleep instead of burning a core.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Final

import torch

from executor.devices.base import (
    STREAMS,
    CopyRange,
    Device,
    Event,
    ReplayKey,
    StreamName,
    Touches,
    Work,
    whole_copy_range,
)
from executor.devices.host_memory import host_bytes

_CHUNK_BYTES = 1 << 20  # a long copy is paced in steps, so that bytes arrive over time as they do with DMA
_LONGEST_SLEEP_NS = 100_000_000  # a copy over a slow link looks so often whether its device was closed
_BACKDATE_NS = 400_000  # time.sleep oversleeps by up to this much; a copy queued behind another forgives it
LINK_GB_S = 8.0
LINK_LATENCY_US = 10.0


class Latch:
    """Shut until it is opened, then open for good.

    Ctrl-C and SIGTERM may be raised inside threading's Event and Condition, which are Python, and leave their lock
    taken: the streams would wait for it for ever, and whoever joins them. Here each step is one of the interpreter's.
    """

    __slots__ = ("_gate",)

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()

    def open(self) -> None:
        """Let all waiters go; again is as once."""
        with suppress(RuntimeError):  # it is open
            self._gate.release()

    def wait(self) -> None:
        """Block until it is open."""
        with suppress(RuntimeError), self._gate:  # opened twice, it is already free
            pass


class HostEvent(Event):
    """An event of the `cpu` device. As in CUDA, waiting for one that was never recorded returns at once, and a wait is
    for the record that was queued last when the wait was."""

    __slots__ = ("_records", "at_ns")

    def __init__(self) -> None:
        self._records: list[Latch] = []
        self.at_ns = 0

    def new_record(self) -> Callable[[], None]:
        """Called when a record is queued: from now on waiters wait for it. Gives what the stream has to run."""
        record = Latch()
        self._records.append(record)
        return partial(self._happen, record)

    def new_wait(self) -> Callable[[], object]:
        """Called when a wait is queued. Gives what the waiting thread has to run."""
        return self._records[-1].wait if self._records else _go_on

    def release(self) -> None:
        """Let all waiters go."""
        for record in self._records:
            record.open()

    def reset(self) -> None:
        """As if never recorded."""
        self._records.clear()

    def _happen(self, record: Latch) -> None:
        """The stream has got here: the time is taken and waiters go on."""
        self.at_ns = time.perf_counter_ns()
        record.open()


def _go_on() -> None:
    """Wait for nothing."""


class StreamWorker:
    """An in-order queue served by one thread. What fails is kept for `take_failure`, and what follows goes on."""

    def __init__(self, name: str, n_threads: int) -> None:
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._failure: tuple[int, BaseException] | None = None
        self._ended = Latch()
        self._thread = threading.Thread(target=self._serve, args=(n_threads,), name=name, daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[[], object]) -> None:
        """Queue `fn` behind what was submitted before."""
        self._queue.put(fn)

    def drain(self) -> None:
        """Block until everything queued so far has run."""
        drained = Latch()
        self.submit(drained.open)
        drained.wait()

    def take_failure(self) -> tuple[int, BaseException] | None:
        """What a queued function raised first since it was asked last, and when (perf_counter, ns)."""
        failure, self._failure = self._failure, None
        return failure

    def stop(self) -> None:
        """Drop what is queued (after an interrupted pass) and end once the running function returns."""
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        self._queue.put(None)

    def join(self) -> None:
        """Block until the thread has ended. Interrupted, `Thread.join` alone would take it for ended ever after."""
        self._ended.wait()
        self._thread.join()

    def _serve(self, n_threads: int) -> None:
        try:
            torch.get_num_threads()  # a thread's first question sets it to what any thread asked for last
            torch.set_num_threads(n_threads)  # per calling thread
            with torch.inference_mode():
                while (fn := self._queue.get()) is not None:
                    try:
                        fn()
                    except BaseException as failure:  # noqa: BLE001 - kept and raised on the host thread by drain()
                        self._failure = self._failure or (time.perf_counter_ns(), failure)
        finally:
            self._ended.open()


class PacedLink:
    """One direction of one device's bus: transfers are served one after the other.

    A transfer of n bytes takes latency + n / speed. Each holds the link from the moment it starts, so two
    streams share the speed as they share one copy engine.
    """

    def __init__(self, gb_s: float, latency_us: float) -> None:
        self._ns_per_byte = 1.0 / gb_s
        self._latency_ns = int(latency_us * 1000)
        self._free_ns = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def close(self) -> None:
        """From now on nothing takes time, not even the copy under way, whose link may be slow."""
        self._is_closed = True

    def transfer(self, ranges: Sequence[CopyRange], queued_ns: int) -> None:
        """Copy `ranges`, taking the time of the link. `queued_ns`: when the copy was issued (perf_counter)."""
        for piece in ranges:
            self._transfer_one(piece, queued_ns)

    def _transfer_one(self, piece: CopyRange, queued_ns: int) -> None:
        with self._lock:
            now = time.perf_counter_ns()
            late = now - self._free_ns
            was_waiting = 0 <= late < _BACKDATE_NS and queued_ns <= self._free_ns
            start = self._free_ns if was_waiting else max(now, self._free_ns)
            self._free_ns = start + self._latency_ns + int(piece.n_bytes * self._ns_per_byte)
            self._move(piece, start + self._latency_ns)
            self._sleep_until(self._free_ns)

    def _move(self, piece: CopyRange, start_ns: int) -> None:
        source = piece.source[piece.source_from : piece.source_from + piece.n_bytes]
        target = piece.target[piece.target_from : piece.target_from + piece.n_bytes]
        for offset in range(0, piece.n_bytes, _CHUNK_BYTES):
            end = min(offset + _CHUNK_BYTES, piece.n_bytes)
            target[offset:end].copy_(source[offset:end])
            if end < piece.n_bytes:
                self._sleep_until(start_ns + int(end * self._ns_per_byte))

    def _sleep_until(self, deadline_ns: int) -> None:
        while not self._is_closed and (remaining_ns := deadline_ns - time.perf_counter_ns()) > 0:
            time.sleep(min(remaining_ns, _LONGEST_SLEEP_NS) / 1e9)


class CpuDevice(Device):
    """A simulated GPU in host memory. Copies cross a link of `link_gb_s`; compute uses `n_threads` cores.

    None for a link option is LINK_GB_S or LINK_LATENCY_US.
    """

    kind = "cpu"

    def __init__(
        self,
        index: int = 0,
        *,
        link_gb_s: float | None = None,
        link_latency_us: float | None = None,
        n_threads: int | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        super().__init__()
        self.index = index
        self.torch_device = torch.device("cpu")
        self.link_gb_s = LINK_GB_S if link_gb_s is None else link_gb_s
        latency_us = LINK_LATENCY_US if link_latency_us is None else link_latency_us
        self.memory_bytes = memory_bytes
        self.n_threads = n_threads or max(1, (os.cpu_count() or 2) - 1)
        self._into = PacedLink(self.link_gb_s, latency_us)
        self._out_of = PacedLink(self.link_gb_s, latency_us)
        threads = {"compute": self.n_threads, "copy": 1, "host": self.n_threads}
        self._workers = {name: StreamWorker(f"hprof-{index}-{name}", threads[name]) for name in STREAMS}
        self._events: list[HostEvent] = []
        self._pool: list[HostEvent] = []
        self._zero_ns = time.perf_counter_ns()
        _OPEN.add(self)

    def allocate(self, n_bytes: int, label: str) -> torch.Tensor:
        self._check_room(self.memory_bytes, n_bytes, label)
        return self._hold(torch.empty(n_bytes, dtype=torch.uint8))

    def peak_bytes(self) -> int | None:
        return None  # tensors that `allocate` did not hand out are nobody's to count here

    def host_slab(self, n_bytes: int, *, pinned: bool) -> torch.Tensor:
        return host_bytes(n_bytes)

    def event(self) -> HostEvent:
        event = self._pool.pop() if self._pool else HostEvent()
        self._events.append(event)
        return event

    def record(self, stream: StreamName, event: Event) -> None:
        assert isinstance(event, HostEvent)
        self._workers[stream].submit(event.new_record())

    def wait(self, stream: StreamName, event: Event) -> None:
        assert isinstance(event, HostEvent)
        self._workers[stream].submit(event.new_wait())

    def synchronize(self, event: Event) -> None:
        assert isinstance(event, HostEvent)
        event.new_wait()()

    def time_ns(self, event: Event) -> int:
        assert isinstance(event, HostEvent)
        return event.at_ns - self._zero_ns

    def launch(
        self,
        stream: StreamName,
        fn: Callable[[], None],
        work: Work,
        key: ReplayKey | None = None,
        touches: Touches | None = None,
    ) -> None:
        self._workers[stream].submit(fn)

    def copy_in(self, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        self._workers[stream].submit(partial(self._into.transfer, ranges, time.perf_counter_ns()))

    def copy_out(self, stream: StreamName, source: torch.Tensor, target: torch.Tensor) -> None:
        whole = [whole_copy_range(source, target)]
        self._workers[stream].submit(partial(self._out_of.transfer, whole, time.perf_counter_ns()))

    def now_ns(self) -> int:
        return time.perf_counter_ns() - self._zero_ns

    def begin_pass(self) -> None:
        self.drain()
        self._zero_ns = time.perf_counter_ns()

    def drain(self) -> None:
        for worker in self._workers.values():
            worker.drain()
        found = [failure for worker in self._workers.values() if (failure := worker.take_failure()) is not None]
        if found:
            raise min(found, key=itemgetter(0))[1]  # others fail on what it left undone

    def recycle(self) -> None:
        for event in self._events:
            event.reset()
        self._pool.extend(self._events)
        self._events.clear()

    def close(self) -> None:
        self._into.close()
        self._out_of.close()
        for worker in self._workers.values():
            worker.stop()
        for event in self._events:
            event.release()  # its record may have been dropped, and a stream may be waiting for it
        for worker in self._workers.values():
            worker.join()
        _OPEN.discard(self)


_OPEN: Final[weakref.WeakSet[CpuDevice]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A thread that is inside torch when the interpreter ends is unwound through C++, which ends the process.

    So what an interrupt left open, even one that came during `close`, is closed before that.
    """
    for device in list(_OPEN):
        device.close()
