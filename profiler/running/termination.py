"""SIGTERM treated as Ctrl-C is: what a batch system or a container sends first must not leave a capture open."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

INTERRUPTED: Final = 130
TERMINATED: Final = 143


class TerminatedError(KeyboardInterrupt):
    """SIGTERM arrived. All that ends well after Ctrl-C ends well after it."""


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM raises TerminatedError in the main thread; elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code_of(interrupt: BaseException | None) -> int:
    """The shell's code for the signal behind an interrupt: 143 for SIGTERM, 130 for Ctrl-C."""
    return TERMINATED if isinstance(interrupt, TerminatedError) else INTERRUPTED


def _raise(_number: int, _frame: object) -> None:
    raise TerminatedError
