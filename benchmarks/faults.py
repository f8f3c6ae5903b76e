"""Faults from outside, planted in every command: what was tried, what survived, and what was lost.

    python -m benchmarks.faults                        # 10 tries a row, seed 16: half an hour
    python -m benchmarks.faults --tries 2 --only run   # commands whose name holds `run`

A try survives where the command ends in time, with the exit code that its end has (130, 143 or 137 by a signal, or 0
where it was done before; 2 where it cannot go on), without a traceback, and where nothing is lost: every pass whose
file was in place is read afterwards, what was there before is whole under --force, an import or an exported file is
whole or absent, and what is only read has not changed. After all but a SIGKILL nothing may lie beside the output.
Instants and sizes come from the seed. As root, full and read-only disks are small file systems in memory; else a limit
of file sizes stands for the full one. Exit code 1 where a try was lost. Seen: benchmarks/results/faults.md.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.fault_tries import (
    COMMANDS,
    REFUSED,
    SIGNALS,
    FaultBench,
    FaultRow,
    n_passes,
    read_back,
    run_whole,
    tried,
    wrong_end,
)
from benchmarks.forked_commands import RunningCommand, load_commands, start
from benchmarks.kineto_trace import write_kineto
from benchmarks.older_captures import older_and_newer, with_keys
from benchmarks.small_disks import mounted, remount_read_only, unmount
from executor.compiling import find_compiler
from profiler.recording.build import built_library
from profiler.recording.cupti_files import find_headers
from tests.profiler.recording.standin import PROGRAM, compiled_standin

_NUMBERS: Final = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "Ctrl-C": signal.SIGINT}
_JUMP_S: Final = 3600 * 24 * 400
_FREE_DISK: Final = 1 << 20
_SCRIPT: Final = ("kernels('gemm', 1000)", "copy(1, 1, 2, 4096, 3000, 4000)", "time.sleep(0.3)")


def send(number: signal.Signals, after_s: float, child: RunningCommand) -> None:
    """Send it to the child after so long."""
    time.sleep(after_s)
    with suppress(ProcessLookupError):
        os.kill(child.pid, number)


def signals(bench: FaultBench, rng: random.Random, tries: int, names: list[str]) -> Iterator[FaultRow]:
    """Each signal at instants of each command's own time."""
    for name in names:
        seconds = bench.whole[name][1]
        for word, code in SIGNALS.items():
            row = FaultRow(word, name)
            for _ in range(tries):
                at = partial(send, _NUMBERS[word], rng.uniform(0, seconds))
                row.count(tried(bench, name, {0, code}, act=at))
            yield row


def disks(bench: FaultBench, rng: random.Random, tries: int, names: list[str]) -> Iterator[FaultRow]:
    """Disks that are full at some byte, or read-only: these only where file systems may be mounted."""
    probe = bench.fresh() / "disk"
    if can_mount := mounted(probe, _FREE_DISK):
        unmount(probe)
    for name in names:
        writes = "OUT" in COMMANDS[name]
        row = FaultRow("disk full" if writes else "stdout's disk full", name)
        for _ in range(tries):
            row.count(full_disk(bench, name, rng) if writes else tried(bench, name, {2}, stdout="/dev/full"))
        yield row
        if writes and can_mount:
            row = FaultRow("read-only folder", name)
            row.count(read_only(bench, name))
            yield row


def full_disk(bench: FaultBench, name: str, rng: random.Random) -> str | None:
    """One try on a disk that takes the old output and some bytes more."""
    old = sum(file.stat().st_size for file in bench.old.rglob("*.*")) if "--force" in name else 0
    size = old + rng.randrange(4096, 160_000)
    disk = bench.fresh() / "disk"
    if not mounted(disk, size + 16 * 4096 * bool(old)):
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size // 8, size // 8))
        return tried(bench, name, {0, REFUSED}, prepare=limit)
    problem = tried(bench, name, {0, REFUSED}, folder=disk)
    unmount(disk)
    return problem


def read_only(bench: FaultBench, name: str) -> str | None:
    """One try on a disk that cannot be written; the old output, if any, lies there."""
    disk = bench.fresh() / "disk"
    if not mounted(disk, _FREE_DISK):
        return "no file system could be mounted"
    problem = tried(bench, name, {REFUSED}, folder=disk, prepare=partial(remount_read_only, disk))
    unmount(disk)
    return problem


def jumping_clock(sign: int, at_call: int) -> None:
    """From its so-manieth reading on, this process's clock of the day is 400 days ahead or behind."""
    calls, real_s, real_ns = [0], time.time, time.time_ns

    def ahead() -> int:
        calls[0] += 1
        return sign * _JUMP_S * (calls[0] > at_call)

    time.time = lambda: real_s() + ahead()
    time.time_ns = lambda: real_ns() + ahead() * 10**9


def limits(bench: FaultBench, rng: random.Random, tries: int, names: list[str]) -> Iterator[FaultRow]:
    """A clock that jumps, few file descriptors, little memory."""
    for name in names:
        clock, files, memory = (
            FaultRow(fault, name) for fault in ("clock jump", "few file descriptors", "little memory")
        )
        for _ in range(tries):
            jump = partial(jumping_clock, rng.choice([-1, 1]), rng.randrange(20))
            clock.count(tried(bench, name, {0}, prepare=jump))
            n = rng.randrange(8, 40)
            few = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (n, n))
            files.count(tried(bench, name, {0, REFUSED}, prepare=few))
            n_bytes = resident_map_bytes() + rng.randrange(1 << 20, 1 << 28)
            little = partial(resource.setrlimit, resource.RLIMIT_AS, (n_bytes, n_bytes))
            memory.count(tried(bench, name, {0, REFUSED}, prepare=little))
        yield from (clock, files, memory)


def resident_map_bytes() -> int:
    """The address space of this process, which a child begins with."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def together(bench: FaultBench, rng: random.Random, tries: int) -> Iterator[FaultRow]:
    """Two runs into one folder; a capture that is read while it is written."""
    two, read = FaultRow("two into one folder", "run"), FaultRow("read while written", "report")
    for _ in range(tries):
        work = bench.fresh()
        words = bench.words("run", work / "out")
        first = start(words, work / "1")
        time.sleep(rng.uniform(0, 0.2))
        ended = [child.end() for child in (start(words, work / "2"), first)]
        found = read_back(work / "out")
        problem = next((one.fault for one in ended if one.fault), None)
        if sorted(one.code for one in ended) != [0, 2] or isinstance(found, str) or found[2] != "complete":
            problem = problem or f"exit codes {[one.code for one in ended]}, {found}"
        two.count(problem)
        read.count(read_while_written(bench))
    yield from (two, read)


def read_while_written(bench: FaultBench) -> str | None:
    """Reports of a run that goes on: each is a report or a sentence, and no pass is ever gone."""
    work = bench.fresh()
    out, n_seen = work / "out", 0
    writing = start(bench.words("run", out), work / "log")
    while os.waitid(os.P_PID, writing.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        n_before = n_passes(out)
        problem = wrong_end(start(["report", str(out), "--json"], work / "report").end(), {0, REFUSED})
        found = read_back(out)
        if problem is not None or (not isinstance(found, str) and found[0] < max(n_seen, n_before)):
            writing.end()
            return problem or f"{max(n_seen, n_before)} passes were there, {found} is read"
        n_seen = n_seen if isinstance(found, str) else found[0]
    return wrong_end(writing.end(), {0})


def schemas(bench: FaultBench, names: list[str]) -> Iterator[FaultRow]:
    """Captures of another time, each read by one command, in turn; one of another schema by all."""
    readers = [name for name in names if "OLD" in COMMANDS[name]]
    turns = itertools.cycle(readers)
    for kind, changes in older_and_newer(bench.old).items():
        row = FaultRow(f"capture of another time: {kind}", "all that read, in turn")
        for what, change in changes.items() if readers else ():
            name = next(turns)
            problem = tried(changed(bench, change), name, {0, REFUSED})
            row.count(problem and f"{what}, {name}: {problem}")
        yield row
    row = FaultRow("capture of another time: schema 2", "all that read")
    for name in readers:
        row.count(tried(changed(bench, with_keys({"schema": 2})), name, {REFUSED}))
    yield row


def changed(bench: FaultBench, change: Callable[[Path], None]) -> FaultBench:
    """The same with a changed copy of its capture."""
    old = bench.fresh() / "old"
    shutil.copytree(bench.old, old)
    change(old)
    return replace(bench, old=old)


def program_in(root: Path) -> list[str]:
    """A program whose CUDA is a stand-in; one without CUDA where no compiler or no header of CUPTI is."""
    compiler, headers = find_compiler(), find_headers()
    if compiler is None or not headers:
        return ["sleep", "0.5"]
    standin = compiled_standin(compiler, headers[0], root)
    os.environ |= {"HPROF_LIBCUPTI": str(standin), "XDG_CACHE_HOME": str(root / "cache")}
    built_library()
    return [sys.executable, str(PROGRAM), str(standin), *_SCRIPT]


def lines_of(rows: list[FaultRow]) -> Iterator[str]:
    """The table, in Markdown, and what was lost."""
    yield "| fault | command | tried | survived | lost |"
    yield "|---|---|---|---|---|"
    for row in rows:
        yield f"| {row.fault} | {row.command} | {row.tried} | {row.tried - len(row.lost)} | {len(row.lost)} |"
    n, n_lost = sum(row.tried for row in rows), sum(len(row.lost) for row in rows)
    yield f"| **all** | | {n} | {n - n_lost} | {n_lost} |"


def main() -> int:
    """Print the table; 1 where something was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=10, help="tries a row [10]")
    parser.add_argument("--seed", type=int, default=16, help="of the instants and sizes [16]")
    parser.add_argument("--only", default="", help="commands whose name holds this")
    parser.add_argument("--faults", default="signals,disks,limits,together,schemas", help="which kinds [all]")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="hprof-faults-"))  # no context manager: a child would leave it too
    bench = FaultBench(root, root / "old", root / "trace.json", program_in(root))
    write_kineto(bench.trace, 4_000)
    subprocess.run([sys.executable, "-m", "hprof", *bench.words("run", bench.old)], check=True, capture_output=True)
    load_commands()
    rng, names = random.Random(options.seed), [name for name in COMMANDS if options.only in name]
    run_whole(bench, names)
    kinds: dict[str, Callable[[], Iterator[FaultRow]]] = {
        "signals": partial(signals, bench, rng, options.tries, names),
        "disks": partial(disks, bench, rng, options.tries, names),
        "limits": partial(limits, bench, rng, max(1, options.tries // 3), names),
        "together": partial(together, bench, rng, max(1, options.tries // 3)),
        "schemas": partial(schemas, bench, names),
    }
    rows, began_s = list[FaultRow](), time.monotonic()
    for kind in options.faults.split(","):
        for row in kinds[kind]():
            rows.append(row)
            told = f"{row.fault}, {row.command}: {row.tried} tried, {len(row.lost)} lost"
            print(f"{time.monotonic() - began_s:6.0f} s  {told}", file=sys.stderr, flush=True)
            for problem in row.lost:
                print(f"LOST {row.fault}, {row.command}: {problem}", file=sys.stderr, flush=True)
    print(f"seed {options.seed}, {options.tries} tries", *lines_of(rows), sep="\n")
    shutil.rmtree(root)
    return int(any(row.lost for row in rows))


if __name__ == "__main__":
    sys.exit(main())
