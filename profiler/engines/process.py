"""Runs a program that may hang, crash, or print without end; what it leaves behind is ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final

from executor.errors import HprofError

MAX_OUTPUT_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 1 << 16
_GRACE_S: Final = 5


@dataclass(frozen=True, slots=True)
class FinishedProgram:
    """How a program ended. `output` and `errors` hold at most the last MAX_OUTPUT_BYTES."""

    code: int  # negative: the signal that ended it
    output: str
    errors: str
    timed_out: bool
    wall_ns: int  # from just before its start to its end

    @property
    def last_words(self) -> str:
        """`its last words: 'out of memory'`: the last line that says something, of stderr, else of stdout."""
        for text in (self.errors, self.output):
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if lines:
                return f"its last words: {lines[-1][:300]!r}"
        return "it printed nothing"

    @property
    def ending(self) -> str:
        """`exit code 1`, `signal SIGSEGV`."""
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return f"signal {signal.Signals(-self.code).name}"
        except ValueError:
            return f"signal {-self.code}"


def run_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float,
    see_errors: Callable[[bytes], None] = lambda _: None,
) -> FinishedProgram:
    """Run `command` with these variables added to hprof's own; raises HprofError where it cannot be started.

    see_errors: called with each piece of stderr as it comes, in a thread of its own.

    The program gets a process group of its own, which is ended on time-out, on Ctrl-C, and when the program has ended:
    what it started in the background must not run beside the next one.
    """
    run = _Run(command, environment, see_errors)
    try:
        run.start()
        timed_out = not run.ended_within(timeout_s)
    finally:
        run.stop()
    if run.refused is not None:
        why = run.refused.strerror if isinstance(run.refused, OSError) else str(run.refused)
        raise HprofError(f"{command[0][:200]} cannot be run: {why}; name a program that can.") from run.refused
    return run.finished(timed_out=timed_out)


class _Run(threading.Thread):
    """Starts a program and waits for its end in a thread of its own.

    There no signal interrupts between the start and the note of it, which would leave a process that nobody ends; and
    the end is noted when it comes, while `Popen.wait` with a time-out looks only every 50 ms.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], see_errors: Callable[[bytes], None]
    ) -> None:
        super().__init__(daemon=True)
        self._see_errors = see_errors
        self._command, self._environment = command, os.environ | dict(environment)
        self._launched, self._ended = threading.Event(), threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._tails: list[_Tail] = []
        self._wall_ns = 0
        self.refused: OSError | ValueError | None = None  # why it could not be started; ValueError: a null byte

    def run(self) -> None:
        started_ns = time.perf_counter_ns()
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self.refused = error
            self._launched.set()
            self._ended.set()
            return
        self._process = process
        self._launched.set()
        assert process.stdout is not None
        assert process.stderr is not None
        self._tails = [_Tail(process.stdout), _Tail(process.stderr, self._see_errors)]
        process.wait()
        self._wall_ns = time.perf_counter_ns() - started_ns
        self._ended.set()

    def ended_within(self, timeout_s: float) -> bool:
        return self._ended.wait(min(timeout_s, threading.TIMEOUT_MAX))

    def stop(self) -> None:
        """Ask the whole group to end, then make it; of a program that has ended, make what is left of its group."""
        if not self._launched.wait(_GRACE_S) or self._process is None:
            return
        if not self._ended.is_set():
            self._signal(signal.SIGTERM)
            self._ended.wait(_GRACE_S)
        self._signal(signal.SIGKILL)
        self._ended.wait()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left, or somebody else's
            os.killpg(self._process.pid, number)

    def finished(self, *, timed_out: bool) -> FinishedProgram:
        """How it ended, once it has."""
        assert self._process is not None
        output, errors = (tail.text() for tail in self._tails)
        return FinishedProgram(self._process.returncode, output, errors, timed_out, self._wall_ns)


class _Tail:
    """The last of what a stream gives, read as it comes, so that its writer never waits and no disk fills."""

    def __init__(self, stream: IO[bytes], see: Callable[[bytes], None] = lambda _: None) -> None:
        self._stream, self._see = stream, see
        self._pieces: deque[bytes] = deque()
        self._n_bytes = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._stream:
            while piece := os.read(self._stream.fileno(), _PIECE_BYTES):
                self._see(piece)
                with self._lock:
                    self._pieces.append(piece)
                    self._n_bytes += len(piece)
                    while self._n_bytes - len(self._pieces[0]) >= MAX_OUTPUT_BYTES:
                        self._n_bytes -= len(self._pieces.popleft())

    def text(self) -> str:
        """What was there when the writers had ended; of one that left the group, what came within a few seconds."""
        self._thread.join(_GRACE_S)
        with self._lock:
            return b"".join(self._pieces)[-MAX_OUTPUT_BYTES:].decode("utf-8", errors="replace")
