"""Run as a script by test_runner_killed.py: forks runs and kills each with SIGKILL at an instant drawn from SEED.

usage: killed_runs.py FOLDER N_RUNS SEED. Imports happen once, so that ten runs take seconds. Run i writes the
capture FOLDER/i; FOLDER/i.log gets one line a pass that the runner finished.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from profiler.planning.plan import plan_run
from profiler.running.runner import run_capture
from tests.profiler.runs import small_request, start_capture


class PassLog:
    """Writes a line to a file, at once, for every finished pass."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def start(self, n_passes: int) -> None: ...
    def before_pass(self, description: str) -> None: ...
    def stop(self) -> None: ...

    def after_pass(self, *, counts: bool) -> None:
        os.write(self._file, b"pass\n")


def run(folder: Path, number: int) -> None:
    plan = plan_run(small_request("cpu", repetitions=6))
    writer = start_capture(plan, folder / str(number))
    run_capture(plan, writer, PassLog(folder / f"{number}.log"))
    writer.finish()


def fork_and_kill(folder: Path, number: int, after_s: float) -> None:
    child = os.fork()
    if child == 0:
        run(folder, number)
        os._exit(0)
    while not (folder / str(number) / "manifest.json").exists():
        time.sleep(0.001)
    time.sleep(after_s)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def main() -> None:
    folder, n_runs = Path(sys.argv[1]), int(sys.argv[2])
    instants = random.Random(int(sys.argv[3]))
    for number in range(n_runs):
        fork_and_kill(folder, number, instants.uniform(0.0, 0.6))


if __name__ == "__main__":
    main()
