"""Whether `hprof report --json`, `import` and `run` ever die while the interpreter ends: a gate cannot live with that.

    python benchmarks/exits.py                      # 1,000 forked runs of each command, and 150 cold ones
    python benchmarks/exits.py --only run           # of the command whose name holds `run`
    python benchmarks/exits.py --planted --cold 0   # the fault that once did it, in the same harness: some must die

A thread of Arrow's that frees a Python buffer after the interpreter is gone ends the process with "terminate called
without an active exception" (exit code 134, signal 6). What decides is the race between those threads and the end of
the process, and not how the modules came into memory. So most runs are forked from a process that has loaded the
commands and started no thread: the child calls the command as `hprof` does, starts Arrow's threads itself, leaves by
SystemExit through the top of the stack, and so ends as any interpreter does. Cold runs are `python -m hprof`. A run
that does not end in five minutes is killed, and counted as one that SIGKILL ended.
Exit code 1 where a run ended with anything but 0. Seen: benchmarks/results/exits.md.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from benchmarks.kineto_trace import write_kineto
from hprof.command_line import main as hprof

_N_EVENTS: Final = 400
_LOADED_FIRST: Final = (  # all that the commands will import: a run then takes 1.2 s of a core, else 2.6
    "profiler.cli.import_",
    "profiler.cli.report",
    "profiler.cli.run",
    "profiler.cli.run_request",
    "profiler.cli.idle_options",
    "profiler.importers.kineto",
    "profiler.report.build",
    "profiler.report.answer",
    "profiler.report.terminal",
    "executor.devices.cpu",
    "executor.session",
    "profiler.running.runner",
    "scipy.stats",
    "torch.fx.experimental.symbolic_shapes",  # with SymPy, which the first pass brings
)
_TOLD_EACH: Final = 50  # runs
_RUN: Final = "run --device cpu --threads 1 --layers 2 -p 64 -n 2 -ub 32 -r 1 --force -o"
_HUNG_S: Final = 300


def forked(work: Callable[[], int]) -> int:
    """The exit code of a child that does `work` and ends as the interpreter does; negative: the signal that killed it.

    The child never returns from here.
    """
    if threading.active_count() > 1:
        raise SystemExit("a thread runs in the parent: a fork would not have it")
    child = os.fork()
    if child:
        return _ended(child)
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    raise SystemExit(work())


def _ended(child: int) -> int:
    began_s = time.monotonic()
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() - began_s > _HUNG_S:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)


def cold(arguments: Sequence[str]) -> int:
    """The exit code of `python -m hprof` with these arguments."""
    command = [sys.executable, "-m", "hprof", *arguments]
    try:
        return subprocess.run(command, capture_output=True, timeout=_HUNG_S, check=False).returncode
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL


def planted(capture: Path) -> int:
    """Read a capture's parquet through Python files while Arrow's threads read ahead: what 0.5 % of runs died of."""
    for part in sorted(capture.rglob("*.parquet")):
        with part.open("rb") as file:
            pq.ParquetFile(file, pre_buffer=True).read_row_groups([0])
    return 0


def told(what: str, codes: Counter[int]) -> str:
    """One line: how many runs, and how those ended that did not end well."""
    bad = {code: n for code, n in sorted(codes.items()) if code}
    names = [f"{n} by {signal.Signals(-code).name if code < 0 else f'exit code {code}'}" for code, n in bad.items()]
    return f"{what}: {codes.total():,} runs, {', '.join(names) or 'all ended with 0'}"


def main() -> int:
    """Print a line for each command and kind of run; 1 where one did not end well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="forked runs of each command [1000]")
    parser.add_argument("--cold", type=int, default=150, help="cold runs of each command [150]")
    parser.add_argument("--only", default="", help="commands whose name holds this")
    parser.add_argument("--planted", action="store_true", help="the fault itself instead of the commands")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hprof-exits-"))  # no context manager: a child would leave it too
    trace, capture = folder / "trace.json", folder / "capture"
    for module in _LOADED_FIRST:
        importlib.import_module(module)
    write_kineto(trace, _N_EVENTS)
    if (code := cold(["import", str(trace), "-o", str(capture)])) != 0:
        raise SystemExit(f"hprof import ended with {code}")
    commands = {
        "report --json": ["report", str(capture), "--json"],
        "import": ["import", str(trace), "-o", str(folder / "again"), "--force"],
        "run": [*_RUN.split(), str(folder / "run")],
    }
    runs: list[tuple[str, int, Callable[[], int]]] = []
    if options.planted:
        runs.append(("planted, forked", options.runs, partial(forked, partial(planted, capture))))
    else:
        for name, words in ((name, words) for name, words in commands.items() if options.only in name):
            runs.append((f"{name}, forked", options.runs, partial(forked, partial(hprof, words))))
            runs.append((f"{name}, cold", options.cold, partial(cold, words)))
    is_bad = False
    for name, n_runs, once in runs:
        codes = Counter[int]()
        for number in range(1, n_runs + 1):
            codes[once()] += 1
            if number % _TOLD_EACH == 0 and number < n_runs:  # a benchmark that is cut off has then seen something
                print(told(f"{name}, so far", codes), file=sys.stderr, flush=True)
        is_bad |= any(codes)
        print(told(name, codes), flush=True)
    shutil.rmtree(folder)
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
