"""A stream of the `cpu` device: a thread that runs queued functions in order, and events between them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import torch

from executor.devices.base import Event


class HostEvent(Event):
    """An event of the `cpu` device. Waiting for one that was never recorded returns at once, as in CUDA."""

    __slots__ = ("_done", "_recorded", "at_ns")

    def __init__(self) -> None:
        self._done = threading.Event()
        self._recorded = False
        self.at_ns = 0

    def mark_recorded(self) -> None:
        """Called when the record is queued: from now on waiters wait."""
        self._recorded = True

    def happen(self) -> None:
        """The stream has got here: the time is taken and waiters go on."""
        self.at_ns = time.perf_counter_ns()
        self._done.set()

    def wait(self) -> None:
        """Block the calling thread until the event; an event that was never recorded holds nobody up."""
        if self._recorded:
            self._done.wait()

    def is_done(self) -> bool:
        """Whether `wait` would return at once."""
        return not self._recorded or self._done.is_set()

    def reset(self) -> None:
        """As if never recorded."""
        self._done.clear()
        self._recorded = False


class StreamWorker:
    """An in-order queue served by one thread. A failure stops the work and is raised by `raise_failure`."""

    def __init__(self, name: str, n_threads: int) -> None:
        self._queue: deque[Callable[[], None] | None] = deque()
        self._ready = threading.Condition()
        self._idle = True
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, args=(n_threads,), name=name, daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[[], None]) -> None:
        """Queue `fn` behind what was submitted before."""
        with self._ready:
            self._queue.append(fn)
            self._idle = False
            self._ready.notify_all()

    def drain(self) -> None:
        """Block until everything queued so far has run."""
        with self._ready:
            self._ready.wait_for(lambda: self._idle)

    def raise_failure(self) -> None:
        """Raise, once, what a queued function raised."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """Drop what is queued (after an interrupted pass) and end once the running function returns."""
        with self._ready:
            self._queue.clear()
            self._queue.append(None)
            self._idle = False
            self._ready.notify_all()

    def join(self) -> None:
        """Block until the thread has ended."""
        self._thread.join()

    def _next(self) -> Callable[[], None] | None:
        with self._ready:
            if not self._queue:
                self._idle = True
                self._ready.notify_all()
                self._ready.wait_for(lambda: bool(self._queue))
            return self._queue.popleft()

    def _serve(self, n_threads: int) -> None:
        torch.get_num_threads()  # a thread's first question sets it to what any thread asked for last
        torch.set_num_threads(n_threads)  # per calling thread
        with torch.inference_mode():
            while (fn := self._next()) is not None:
                try:
                    fn()
                except BaseException as failure:  # noqa: BLE001 - kept and raised on the host thread by drain()
                    self._failure = self._failure or failure
