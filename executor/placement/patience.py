"""A limit on how long a pattern that a user wrote may be matched: nested repetitions could take years."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError inside, in the main thread and where the system has timers; `re` looks for signals.

    Elsewhere there is no limit, as nothing can stop `re` there.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    begun_s = time.monotonic()
    handler = signal.signal(signal.SIGALRM, _raise)
    others_s, others_interval_s = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if others_s:  # somebody else's alarm rings when it would have
            left_s = max(others_s - (time.monotonic() - begun_s), 0.001)
            signal.setitimer(signal.ITIMER_REAL, left_s, others_interval_s)


def _raise(_number: int, _frame: object) -> None:
    raise TimeoutError
