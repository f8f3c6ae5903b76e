"""SIGTERM treated as Ctrl-C is: what a batch system or a container sends first must not leave a capture open."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final

INTERRUPTED: Final = 130
TERMINATED: Final = 143
_LOOK_AGAIN_S: Final = 0.02
_IMPORTING: Final = "<frozen importlib._bootstrap>"
_SAME_S: Final = 1.0  # Ctrl-C reaches a process of --boots from the terminal and from its parent


class TerminatedError(KeyboardInterrupt):
    """SIGTERM arrived. All that ends well after Ctrl-C ends well after it."""


@contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM raises TerminatedError in the main thread, as SIGINT raises KeyboardInterrupt.

    Either comes through once a second, so that one order to end is not taken for two. Elsewhere nothing changes, and a
    SIGINT that is ignored (as in a script's background) stays so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    raise_once = _raiser()
    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, raise_once)}
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, _raise_between_imports):
        before[signal.SIGINT] = signal.signal(signal.SIGINT, raise_once)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupted_between_imports() -> Iterator[None]:
    """Inside, Ctrl-C waits while a module is imported: some swallow it and fail later by what they then lack (NumPy),
    or end the process (torch). Elsewhere nothing changes, and a SIGINT that is ignored stays so.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    _imports.outermost = sys._getframe(2)  # who entered: whether that is being imported is not looked at
    alarm = signal.signal(signal.SIGALRM, _raise_between_imports)
    signal.signal(signal.SIGINT, _raise_between_imports)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        _imports.outermost = None


@contextmanager
def raised_afterwards() -> Iterator[None]:
    """Inside, what `terminable` raises waits for the end: for steps of Python that no interrupt may part, and for
    imports of C++ that calls Python back and may not see an exception there.

    `import torch` is such a one: a KeyboardInterrupt that is raised in the middle of it ends the process with
    "terminate called after throwing an instance of 'pybind11::error_already_set'". A signal mask would not do: the
    system gives the signal to another thread, such as one of NumPy's, and Python runs the handler in the main thread
    all the same; and processes that are started inside would begin with the mask.
    """
    _later.is_asked = True
    try:
        yield
    finally:
        _later.is_asked = False
        number, _later.number = _later.number, None
        if number is not None:
            raise _interrupt_of(number)


def exit_code_of(interrupt: BaseException | None) -> int:
    """The shell's code for the signal behind an interrupt: 143 for SIGTERM, 130 for Ctrl-C."""
    return TERMINATED if isinstance(interrupt, TerminatedError) else INTERRUPTED


@dataclass(slots=True)
class _Later:
    is_asked: bool = False
    number: int | None = None
    """The signal that came meanwhile."""


_later: Final = _Later()


@dataclass(slots=True)
class _Imports:
    outermost: FrameType | None = None


_imports: Final = _Imports()


def _raise_between_imports(_number: int, frame: FrameType | None) -> None:
    while frame is not None and frame is not _imports.outermost:
        if frame.f_code.co_filename == _IMPORTING:
            signal.setitimer(signal.ITIMER_REAL, _LOOK_AGAIN_S)
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _interrupt_of(number: int) -> KeyboardInterrupt:
    return TerminatedError() if number == signal.SIGTERM else KeyboardInterrupt()


def _raiser() -> Callable[[int, object], None]:
    last_s = -_SAME_S

    def raise_once(number: int, _frame: object) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        is_new, last_s = now_s - last_s >= _SAME_S, now_s
        if is_new and _later.is_asked:
            _later.number = number
        elif is_new:
            raise _interrupt_of(number)

    return raise_once
