"""A stand-in for a CUDA program: what CUDA's driver does at its start, and then what a script says.

    python program.py STANDIN "kernel('gemm', 1000, 2000)" ...

The script sees the functions below, `os` and `time`. Times are ns from the program's start.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from ctypes import c_uint64
from typing import Any

_T0 = time.time_ns()


class Cuda:
    """The started driver: `calls` emits records, `last_call` is the correlation id given last."""

    calls: Any = None
    last_call = 0


def start_cuda(standin: str) -> None:
    """Load the library that CUDA_INJECTION64_PATH names, as the driver does in cuInit."""
    if injected := os.environ.get("CUDA_INJECTION64_PATH"):
        assert ctypes.CDLL(injected).InitializeInjection() == 1
    Cuda.calls = ctypes.CDLL(standin)
    Cuda.calls.standin_device(b"NVIDIA H200", c_uint64(150_000_000_000))


def _ns(at: int) -> c_uint64:
    return c_uint64(_T0 + at)


def _call(number: int, is_driver: bool = False) -> int:
    """The host calls now; gives the correlation id."""
    Cuda.last_call += 1
    now = time.time_ns()
    thread = threading.get_native_id()
    Cuda.calls.standin_call(int(is_driver), number, thread, Cuda.last_call, c_uint64(now), c_uint64(now + 1))
    return Cuda.last_call


def kernel(name: str, start: int, end: int | None, stream: int = 7, node: int = 0) -> None:
    """A kernel; without an end it is still running."""
    times = (c_uint64(0), c_uint64(0)) if end is None else (_ns(start), _ns(end))
    Cuda.calls.standin_kernel(name.encode(), 1, stream, _call(13), *times, c_uint64(node))


def kernels(name: str, count: int, running: bool = False) -> None:
    """Many kernels one after the other, without calls; or as many that never end."""
    Cuda.calls.standin_kernels(name.encode(), c_uint64(count), c_uint64(0) if running else _ns(0))


def copy(kind: int, source: int, target: int, n_bytes: int, start: int, end: int, stream: int = 14) -> None:
    """A copy; kinds are CUPTI's numbers."""
    Cuda.calls.standin_copy(kind, source, target, c_uint64(n_bytes), stream, _call(41), _ns(start), _ns(end))


def peer_copy(n_bytes: int, start: int, end: int) -> None:
    """From device 0 to device 1."""
    Cuda.calls.standin_peer_copy(c_uint64(n_bytes), _call(41), _ns(start), _ns(end))


def memset(n_bytes: int, start: int, end: int) -> None:
    """A memset."""
    Cuda.calls.standin_memset(c_uint64(n_bytes), _call(13), _ns(start), _ns(end))


def graph(number: int, start: int, end: int) -> None:
    """A launch of a whole graph."""
    Cuda.calls.standin_graph(number, _call(311), _ns(start), _ns(end))


def graph_node(kind: int) -> None:
    """A node is added to a graph."""
    Cuda.calls.standin_graph_node(kind)


def sync(kind: int, stream: int, start: int, end: int) -> None:
    """The host waits."""
    Cuda.calls.standin_sync(kind, stream, _call(131), _ns(start), _ns(end))


def memory(operation: int, kind: int, address: int, n_bytes: int, at: int) -> None:
    """An allocation (1) or a release (2)."""
    Cuda.calls.standin_memory(operation, kind, c_uint64(address), c_uint64(n_bytes), _ns(at))


def is_enabled(kind: int) -> bool:
    """Whether this kind of record is asked for."""
    return bool(Cuda.calls.standin_is_enabled(kind))


def held_buffers() -> int:
    """Buffers that the recorder gave and did not get back."""
    return int(Cuda.calls.standin_held_buffers())


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Until it holds: a test waits for a fact, never for a time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


if __name__ == "__main__":
    if sys.argv[1] != "-":  # "-": a program that never starts CUDA
        start_cuda(sys.argv[1])
    for line in sys.argv[2:]:
        exec(line)
