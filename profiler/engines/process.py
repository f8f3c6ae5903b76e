"""Runs a program that may hang, crash, or print without end; what it leaves behind is ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final

from executor.errors import HprofError

MAX_OUTPUT_BYTES: Final = 64 << 20
_GRACE_S: Final = 5


@dataclass(frozen=True, slots=True)
class FinishedProgram:
    """How a program ended. `output` and `errors` hold at most the last MAX_OUTPUT_BYTES."""

    code: int  # negative: the signal that ended it
    output: str
    errors: str
    timed_out: bool

    @property
    def last_words(self) -> str:
        """The last line that says something, from stderr if there is one, else stdout."""
        for text in (self.errors, self.output):
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if lines:
                return lines[-1][:300]
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


def run_program(command: Sequence[str], environment: Mapping[str, str], timeout_s: float) -> FinishedProgram:
    """Run `command` with these variables added to hprof's own; raises HprofError where it cannot be started.

    The program gets a process group of its own, which is ended on time-out and on Ctrl-C.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=os.environ | dict(environment),
                start_new_session=True,
            )
        except OSError as error:
            raise HprofError(f"{command[0]} cannot be run: {error.strerror}; name a program that can.") from error
        timed_out = False
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _end(process)
        return FinishedProgram(process.returncode, _tail(output), _tail(errors), timed_out)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the whole group to end, then make it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)


def _tail(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MAX_OUTPUT_BYTES))
    return file.read().decode("utf-8", errors="replace")
