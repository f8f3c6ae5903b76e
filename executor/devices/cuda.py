"""The CUDA device: torch streams and timing events. Ordering is by events alone; only `synchronize` blocks.

A step's launches are replayed as one CUDA graph instead of some thirty calls from Python. A step runs as it is
the first time (libraries initialise) and is recorded right after. Recorded steps share one memory pool: what a
step allocates dies inside it. Where a GPU has no room for that pool beside what torch keeps, steps run as they are.
All replays give the same bits; the first run may differ in the last one.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

import torch

from executor import peak_memory
from executor.devices.base import (
    CopyRange,
    Device,
    Event,
    RecordedWork,
    ReplayKey,
    SourceMemory,
    StreamName,
    Touches,
    Work,
)
from executor.devices.cuda_clock import GpuClock
from executor.devices.cuda_hold import host_word
from executor.devices.cuda_memcpy import cuda_memcpy
from executor.devices.host_memory import host_bytes
from executor.devices.out_of_memory import what_ran_out
from executor.errors import HprofError, PinningRefusedError
from executor.triton_support import has_triton
from executor.units import format_bytes

_MOST_GRAPHS = 4096  # each keeps some tens of KiB on the device; beyond, steps are launched as they are
_MOST_VARIANTS = 64  # of one step, lest those that differ at each position leave no room for the others
_REGISTER_READ_ONLY = 8  # cudaHostRegisterReadOnly
_PROBE_COPIES = 24
_PROBE_BYTES = 256 << 20  # one copy this large reaches the link's ceiling


class GraphReplays:
    """The recorded steps of one device. Call on the stream that they run on, which is always the same."""

    def __init__(self) -> None:
        self._graphs: dict[ReplayKey, torch.cuda.CUDAGraph | None] = {}  # None: there was no room
        self._variants: Counter[Hashable] = Counter()
        self._pool: Any = None

    def launch(self, key: ReplayKey, fn: Callable[[], None]) -> None:
        """Do what `fn` does, by replay where it was recorded."""
        graph = self._graphs.get(key)
        if graph is not None:
            graph.replay()
            return
        fn()
        if key in self._graphs:
            return
        if len(self._graphs) < _MOST_GRAPHS and self._variants[key.step] < _MOST_VARIANTS:
            self._variants[key.step] += 1
            self._graphs[key] = self._recorded(fn)

    def _recorded(self, fn: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """`record` what just ran; None where memory has no room for it.

        Torch gives a recording nothing of what it keeps for later, which is as much as the step itself used.
        """
        for _ in range(2):
            try:
                return self.record(fn)
            except RuntimeError as error:
                if what_ran_out(error) != "device":
                    raise
            torch.cuda.empty_cache()
        return None

    def clear(self) -> None:
        """Forget all recorded graphs, and give their memory back."""
        self._graphs.clear()
        self._variants.clear()
        self._pool = None

    def record(self, fn: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """What `fn` launches, which is not run: for the caller to keep, in the memory that all recordings share."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            fn()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # what broke the recording tells more
                graph.capture_end()
            raise
        graph.capture_end()
        return graph


class RecordedGraph(RecordedWork):
    """A CUDA graph."""

    __slots__ = ("graph",)

    def __init__(self, graph: torch.cuda.CUDAGraph) -> None:
        self.graph = graph


class CudaEvent(Event):
    """A torch timing event; on the `host` stream, which runs on the issuing thread, a clock reading instead."""

    __slots__ = ("cuda", "host_ns")

    def __init__(self) -> None:
        self.cuda = torch.cuda.Event(enable_timing=True)
        self.host_ns: int | None = None


class CudaDevice(Device):
    """One NVIDIA GPU. Creating and first recording an event costs 16 us of host time, hence the pool."""

    kind = "cuda"
    replays = True

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.index = index
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self.torch_device)
        self._streams = {
            "compute": torch.cuda.Stream(self.torch_device),
            "copy": torch.cuda.Stream(self.torch_device),
        }
        self._used: list[CudaEvent] = []
        self._pool: list[CudaEvent] = []
        self._registered: list[torch.Tensor] = []
        self._replays = GraphReplays()
        self._is_recording = False
        self.records_work = has_triton()  # whose kernel reads the clock
        self._clock = GpuClock(self.torch_device) if self.records_work else None
        self._memcpy = cuda_memcpy()
        self._word = host_word(self._streams["compute"])
        self.holds = self._word is not None
        self._zero = torch.cuda.Event(enable_timing=True)
        self._zero_ns = time.perf_counter_ns()
        self.begin_pass()
        self.link_gb_s = self._measure_link()

    def allocate(self, n_bytes: int, label: str) -> torch.Tensor:
        try:
            buffer = torch.empty(n_bytes, dtype=torch.uint8, device=self.torch_device)
        except torch.OutOfMemoryError:
            free, total = torch.cuda.mem_get_info(self.torch_device)
            raise HprofError(
                f"GPU {self.index} has {format_bytes(free)} of {format_bytes(total)} free and {label} needs "
                f"{format_bytes(n_bytes)}: keep fewer layers resident (-ot, -ncmoe, -ngl) or use a smaller -ub"
            ) from None
        return self._hold(buffer)

    def peak_bytes(self) -> int | None:
        return peak_memory.peak_bytes(self.torch_device)

    def host_slab(self, n_bytes: int, *, pinned: bool) -> torch.Tensor:
        slab = host_bytes(n_bytes)
        if pinned:
            slab.zero_()  # touched by all cores first: registering touched pages is ten times as fast
            self.register(slab)
        return slab

    def register(self, memory: torch.Tensor) -> None:
        """Pin host memory in place (cudaHostRegister), so that copies from it are asynchronous DMA."""
        if memory.numel() == 0:
            return
        cudart = torch.cuda.cudart()
        code = cudart.cudaHostRegister(memory.data_ptr(), memory.numel(), 0)
        if int(code) != 0:  # a read-only mapping is refused unless it is announced as one
            self._clear_last_error()
            code = cudart.cudaHostRegister(memory.data_ptr(), memory.numel(), _REGISTER_READ_ONLY)
        if int(code) != 0:
            self._clear_last_error()
            pinned = sum(other.numel() for other in self._registered)
            raise PinningRefusedError(
                f"the driver refused to pin {format_bytes(memory.numel())} of host memory beside the "
                f"{format_bytes(pinned)} that it pinned ({cudart.cudaGetErrorString(code)}): raise the limit of "
                "locked memory (ulimit -l, or the container's), or use --load-mode mmap",
                pinned,
            )
        self._registered.append(memory)

    def source_memory(self, *, is_pinned: bool) -> SourceMemory | None:
        return "pinned" if is_pinned else "pageable"

    def _clear_last_error(self) -> None:
        """A refusal stays CUDA's last error until a kernel launch reports it: let it be this one's."""
        with contextlib.suppress(RuntimeError):
            torch.ones(1, device=self.torch_device)

    def event(self) -> CudaEvent:
        event = self._pool.pop() if self._pool else CudaEvent()
        self._used.append(event)
        return event

    def record(self, stream: StreamName, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        if stream == "host":
            event.host_ns = self.now_ns()
        else:
            event.cuda.record(self._streams[stream])

    def wait(self, stream: StreamName, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        if event.host_ns is not None:
            return  # it happened on this thread already
        if stream == "host":
            event.cuda.synchronize()
        else:
            self._streams[stream].wait_event(event.cuda)

    def synchronize(self, event: Event) -> None:
        self.wait("host", event)

    def time_ns(self, event: Event) -> int:
        assert isinstance(event, CudaEvent)
        if event.host_ns is not None:
            return event.host_ns
        return round(float(self._zero.elapsed_time(event.cuda)) * 1e6)

    def launch(
        self,
        stream: StreamName,
        fn: Callable[[], None],
        work: Work,
        key: ReplayKey | None = None,
        touches: Touches | None = None,
    ) -> None:
        if stream == "host":
            fn()
            return
        with self._on(stream):
            if key is None or self._is_recording:
                fn()
            else:
                self._replays.launch(key, fn)

    def record_work(self, stream: StreamName, issue: Callable[[], None]) -> RecordedGraph:
        self._is_recording = True
        try:
            with torch.cuda.stream(self._streams[stream]):
                return RecordedGraph(self._replays.record(issue))
        except RuntimeError as error:
            if what_ran_out(error) == "device":
                torch.cuda.empty_cache()
            raise
        finally:
            self._is_recording = False

    def replay(self, stream: StreamName, recording: RecordedWork) -> None:
        assert isinstance(recording, RecordedGraph)
        with self._on(stream):
            recording.graph.replay()

    def hold(self, stream: StreamName) -> Callable[[], None]:
        assert self._word is not None
        with self._on(stream):
            return self._word.hold(self._streams[stream].cuda_stream)

    def _let_all_go(self) -> None:
        """What an interrupted pass left waiting would wait for ever."""
        if self._word is not None:
            self._word.let_all_go()

    def stamp(self, stream: StreamName, into: torch.Tensor) -> None:
        assert self._clock is not None
        with torch.cuda.stream(self._streams[stream]):
            self._clock.stamp(into)

    def stamped_ns(self, stamp: int) -> int:
        assert self._clock is not None
        return stamp - self._clock.zero_ns

    def copy_in(self, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        if self._memcpy is not None:
            for piece in ranges:
                target = piece.target.data_ptr() + piece.target_from
                self._copy(stream, target, piece.source.data_ptr() + piece.source_from, piece.n_bytes)
            return
        with self._on(stream):
            for piece in ranges:
                part = piece.target[piece.target_from : piece.target_from + piece.n_bytes]
                source = piece.source[piece.source_from : piece.source_from + piece.n_bytes]
                part.copy_(source, non_blocking=True)

    def copy_out(self, stream: StreamName, source: torch.Tensor, target: torch.Tensor) -> None:
        if self._memcpy is not None and source.is_contiguous() and target.is_contiguous():
            self._copy(stream, target.data_ptr(), source.data_ptr(), source.nbytes)
            return
        with self._on(stream):
            target.copy_(source, non_blocking=True)

    def _copy(self, stream: StreamName, target: int, source: int, n_bytes: int) -> None:
        assert self._memcpy is not None
        code = self._memcpy(target, source, n_bytes, self._streams[stream].cuda_stream)
        if code:
            raise HprofError(f"GPU {self.index} refused to copy {format_bytes(n_bytes)} (CUDA error {code})")

    def _on(self, stream: StreamName) -> AbstractContextManager[object]:
        """Makes a stream torch's present one, which takes longer than a launch: not where it is that already."""
        wanted = self._streams[stream]
        return contextlib.nullcontext() if torch.cuda.current_stream() == wanted else torch.cuda.stream(wanted)

    def now_ns(self) -> int:
        return time.perf_counter_ns() - self._zero_ns

    def begin_pass(self) -> None:
        self._let_all_go()
        torch.cuda.synchronize(self.torch_device)
        peak_memory.begin(self.torch_device)
        self._zero.record(self._streams["compute"])
        self._zero.synchronize()
        self._zero_ns = time.perf_counter_ns()
        if self._clock is not None:
            with torch.cuda.stream(self._streams["compute"]):
                self._clock.align(self._zero)
        torch.cuda.set_stream(self._streams["compute"])

    def drain(self) -> None:
        self._let_all_go()
        torch.cuda.synchronize(self.torch_device)

    def recycle(self) -> None:
        for event in self._used:
            event.host_ns = None
        self._pool.extend(self._used)
        self._used.clear()

    def close(self) -> None:
        self.drain()
        torch.cuda.set_stream(torch.cuda.default_stream(self.torch_device))
        self._replays.clear()
        for memory in self._registered:
            torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())
        self._registered.clear()

    def _measure_link(self) -> float:
        """The best of many large copies: an idle link takes some milliseconds to reach its speed."""
        source = torch.empty(_PROBE_BYTES, dtype=torch.uint8, pin_memory=True)
        target = torch.empty(_PROBE_BYTES, dtype=torch.uint8, device=self.torch_device)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(_PROBE_COPIES + 1)]
        marks[0].record()
        for mark in marks[1:]:
            target.copy_(source, non_blocking=True)
            mark.record()
        marks[-1].synchronize()
        return _PROBE_BYTES / min(float(a.elapsed_time(b)) for a, b in pairwise(marks)) / 1e6
