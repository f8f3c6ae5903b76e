"""`--boots N`: the whole run again in fresh processes, as the first placement of memory is a matter of luck."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from executor.errors import HprofError
from profiler.capture import Capture
from profiler.running.runner import InterruptedRunError, Position
from profiler.running.termination import INTERRUPTED, TERMINATED, exit_code_of
from profiler.storage.writer import CaptureWriter


def run_boots(path: str, arguments: Sequence[str], n_boots: int) -> None:
    """Run `hprof run ARGUMENTS` `n_boots` times into the capture at `path`, one process after the other.

    Raises what ended a process early; the capture then keeps the passes that were finished.
    """
    import hprof

    for boot in range(n_boots):
        own = ["--boot", str(boot), "--boot-path", path]
        command = [sys.executable, str(Path(hprof.__file__).resolve()), "run", *arguments, *own]
        try:
            code = subprocess.run(command, check=False).returncode
        except KeyboardInterrupt as interrupt:
            code = exit_code_of(interrupt)
        if code != 0:
            _stop(path, boot, code)
    CaptureWriter.attach(path, prefix="").finish()


def attach(path: str, boot: int) -> tuple[CaptureWriter, Position]:
    """The writer and the position with which process number `boot` goes on."""
    passes = Capture.open(path).table("passes", ["pass_id", "t_end"])
    writer = CaptureWriter.attach(path, prefix=f"boot-{boot:03d}-")
    if not passes.num_rows:
        return writer, Position(boot=boot)
    last = max(passes.column("pass_id").to_pylist())
    return writer, Position(last + 1, max(passes.column("t_end").to_pylist()), boot)


def _stop(path: str, boot: int, code: int) -> None:
    CaptureWriter.attach(path, prefix="").finish("interrupted")
    if code in (INTERRUPTED, TERMINATED):
        raise InterruptedRunError(path, code)
    raise HprofError(f"process {boot + 1} of --boots ended with exit code {code}; {path} keeps what was finished.")
