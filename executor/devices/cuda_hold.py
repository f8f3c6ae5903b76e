"""A stream that waits until the host says go on: what follows is queued while the host still computes.

The GPU itself watches a word of host memory (the driver's stream memory operations), so that neither a kernel spins nor
does the host issue anything once it is done: it stores a number.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from collections.abc import Callable
from typing import Final

import torch

from executor.errors import HprofError

_AT_LEAST: Final = 0  # CU_STREAM_WAIT_VALUE_GEQ: the word minus the value, as signed 32 bits, is not negative
_BITS: Final = 0xFFFFFFFF
_PATIENCE_S: Final = 0.5
WaitValue = Callable[[int, int, int, int], int]
"""(stream, address, value, flags) to an error's code, 0 for none."""


@functools.cache
def _wait_value() -> WaitValue | None:
    """The driver's call; None where there is no such driver."""
    try:
        function = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
    function.restype = ctypes.c_int
    return lambda stream, address, value, flags: int(function(stream, address, value, flags))


class HostWord:
    """A word of pinned memory that streams of one device wait for, and the number of the last wait."""

    def __init__(self, wait_value: WaitValue) -> None:
        self._wait_value = wait_value
        self._word = torch.zeros(1, dtype=torch.int64, pin_memory=True)
        self._written = self._word.view(torch.int32).numpy().view("uint32")[:1]
        self._address = self._word.data_ptr()
        self._n = 0

    def hold(self, stream: int) -> Callable[[], None]:
        """What follows on a stream waits until the function that this gives is called. Again is as once."""
        self._n += 1  # first: whatever interrupts this, `let_all_go` lets it go
        code = self._wait_value(stream, self._address, self._n & _BITS, _AT_LEAST)
        if code:
            raise HprofError(f"the GPU's driver refused to let a stream wait for the host (error {code}).")
        return functools.partial(self._let_go, self._n)

    def let_all_go(self) -> None:
        """Nothing waits any longer."""
        self._let_go(self._n)

    def _let_go(self, number: int) -> None:
        self._written[0] = number & _BITS  # one store; what was computed was stored before it


def host_word(stream: torch.cuda.Stream) -> HostWord | None:
    """One for a stream's device, tried on it; None where the driver has no such waits, or launches wait themselves."""
    wait_value = _wait_value()
    if wait_value is None:
        return None
    word = HostWord(wait_value)
    with torch.cuda.stream(stream):
        probe = torch.zeros(1, device=stream.device)
        probe.fill_(1)  # the first time kernels are loaded
        stream.synchronize()
        try:
            let_go = word.hold(stream.cuda_stream)
        except HprofError:
            return None
        can_hold = returns_while_held(lambda: probe.fill_(2), let_go)
        stream.synchronize()
    return word if can_hold else None


def returns_while_held(
    launch: Callable[[], object], let_go: Callable[[], None], patience_s: float = _PATIENCE_S
) -> bool:
    """Whether `launch` queues work on a stream that is held, and returns. Either way the stream is let go.

    Under CUDA_LAUNCH_BLOCKING, and under profilers that run one kernel after the other, it waits for the kernel.
    """
    timer = threading.Timer(patience_s, let_go)
    timer.daemon = True
    begin = time.monotonic()
    timer.start()
    try:
        launch()
        return time.monotonic() - begin < patience_s
    finally:
        timer.cancel()
        let_go()
