"""hprof's commands in forked children, with a fault for each: a signal at an instant, a limit, a full disk.

The parent has loaded the commands and started no thread, so that a child begins at once and a fault hits the command's
own work. The child ends as the command returns, without the interpreter's end, which benchmarks/exits.py is about. An
error that no command caught goes to the top of the stack: so no caller may hold a context manager or a `finally`.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from hprof.command_line import COMMANDS
from hprof.command_line import main as hprof

HUNG: Final = -1
TRACES: Final = ("Traceback", "terminate called", "Fatal Python error", "core dumped")
# Importing SciPy's C code with little address space left can spin in OpenBLAS for good, which is no fault of hprof's.
_LOADED_TOO: Final = (
    "torch",
    "pyarrow.parquet",
    "pandas",
    "scipy.optimize",
    "scipy.stats",
    "executor.session",
    "profiler.running.runner",
)


@dataclass(frozen=True, slots=True)
class EndedCommand:
    """How a command ended: the exit code as a shell gives it (128 + the signal that killed it), or HUNG."""

    code: int
    stderr: str
    seconds: float

    @property
    def fault(self) -> str | None:
        """What no command may do, whatever was done to it; None where it did not."""
        if self.code == HUNG:
            return "hung"
        return next((f"said {word!r}" for word in TRACES if word in self.stderr), None)


@dataclass(frozen=True, slots=True)
class RunningCommand:
    """A command that runs."""

    pid: int
    log: Path
    began_s: float

    def end(self, limit_s: float = 300.0) -> EndedCommand:
        """Wait for it, and kill it where it takes longer than `limit_s`; it then says where it was."""
        while time.monotonic() - self.began_s < limit_s:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                return self._ended(code if code >= 0 else 128 - code)
            time.sleep(0.002)
        os.kill(self.pid, signal.SIGUSR1)
        time.sleep(1)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return self._ended(HUNG)

    def _ended(self, code: int) -> EndedCommand:
        return EndedCommand(code, self.log.read_text(errors="replace"), time.monotonic() - self.began_s)


def load_commands() -> None:
    """Import what the commands will, so that children need not."""
    for module in (*_LOADED_TOO, *(module for module, _ in COMMANDS.values())):
        importlib.import_module(module)


def start(
    words: Sequence[str], log: Path, prepare: Callable[[], None] | None = None, stdout: str = os.devnull
) -> RunningCommand:
    """Start `hprof WORDS`, what it says on stderr in `log`; returns as it begins. `prepare` is called in the child."""
    if threading.active_count() > 1:
        raise SystemExit("a thread runs in the parent: a fork would not have it")
    ready, begins = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(words, log, prepare, stdout, begins)
    os.close(begins)
    os.read(ready, 1)
    os.close(ready)
    return RunningCommand(pid, log, time.monotonic())


def _become(words: Sequence[str], log: Path, prepare: Callable[[], None] | None, stdout: str, begins: int) -> NoReturn:
    for stream, path in ((1, stdout), (2, str(log))):
        file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, stream)
        os.close(file)
    faulthandler.register(signal.SIGUSR1)
    if prepare is not None:
        prepare()
    os.write(begins, b"!")
    os.close(begins)
    code = hprof(list(words))
    with suppress(OSError):  # stdout's disk may be full, which the command has said
        sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
