"""Ends a pass on the `cpu` device at each instant at which Python may raise what a signal asks for, and closes it.

`python -m tests.executor.devices.interrupted_cpu` prints at how many instants; one that is not closed within WAIT_S is
told with where it was interrupted, and the exit code is 1.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from types import FrameType
from typing import Any

from executor.devices.base import Work
from executor.devices.cpu import CpuDevice

WAIT_S = 60


class _InterruptAt:
    """A trace function that raises KeyboardInterrupt at the n-th call, line or return."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.where = ""

    def __call__(self, frame: FrameType, _kind: str, _argument: object) -> Any:
        self._left -= 1
        if self._left == 0:
            self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
            raise KeyboardInterrupt
        return self


def use(device: CpuDevice) -> None:
    """What a pass does: events, waits, work and the end."""
    for _ in range(2):  # events are used again
        event = device.event()
        device.record("compute", event)
        device.wait("copy", event)
        device.launch("copy", lambda: None, Work())
        device.synchronize(event)
        device.drain()
        device.recycle()


def close_after_interrupt(number: int) -> bool:
    """Whether the pass was interrupted, that is, had so many instants."""
    device = CpuDevice(n_threads=1)
    interrupt = _InterruptAt(number)
    try:
        sys.settrace(interrupt)
        use(device)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    sys.stderr.write(f"interrupted in {interrupt.where}\n")
    device.close()
    return interrupt.where != ""


if __name__ == "__main__":
    n_instants = 0
    faulthandler.dump_traceback_later(WAIT_S, exit=True)
    while close_after_interrupt(n_instants + 1):
        n_instants += 1
        faulthandler.dump_traceback_later(WAIT_S, exit=True)
    sys.stdout.write(f"{n_instants}\n")
    sys.stdout.flush()
    os._exit(0)
