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
import hashlib
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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import orjson

from benchmarks.forked_commands import EndedCommand, RunningCommand, load_commands, start
from benchmarks.kineto_trace import write_kineto
from benchmarks.small_disks import mounted, remount_read_only, unmount
from executor.errors import HprofError
from profiler.capture import Capture

RUN: Final = "run --device cpu --threads 1 --layers 2 -p 64 -n 2 -ub 32 -r 6 --record-ordering"
COMMANDS: Final = {
    "run": f"{RUN} -o OUT",
    "run --force": f"{RUN} -o OUT --force",
    "import": "import TRACE -o OUT",
    "import --force": "import TRACE -o OUT --force",
    "export chrome": "export OLD -o OUT",
    "export html": "export OLD --format html -o OUT",
    "export csv --force": "export OLD --format csv -o OUT --force",
    "record": "record -o OUT -- sleep 0.5",
    "compare": "compare OLD OLD --json",
    "report": "report OLD --json",
    "check": "check OLD --json",
    "predict": "predict --fit OLD --json",
    "advise": "advise --fit OLD --vram-budget 1GiB --json",
}
"""OLD is a capture that is only read, TRACE a trace, OUT what is written. `record` records a program without CUDA."""
SIGNALS: Final = {"SIGKILL": 137, "SIGTERM": 143, "Ctrl-C": 130}
_NUMBERS: Final = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "Ctrl-C": signal.SIGINT}
_REFUSED: Final = 2
_JUMP_S: Final = 3600 * 24 * 400
_FREE_DISK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FaultBench:
    """Where tries are made: the folder, and what the commands read."""

    root: Path
    old: Path
    trace: Path
    whole: dict[str, tuple[str, float]] = field(default_factory=dict)
    """A command's output when nothing disturbs it, as its digest, and the seconds that it takes."""

    def words(self, name: str, out: Path) -> list[str]:
        """The command's arguments, with its paths."""
        paths = {"OLD": str(self.old), "TRACE": str(self.trace), "OUT": str(out)}
        return [paths.get(word, word) for word in COMMANDS[name].split()]

    def fresh(self) -> Path:
        """An empty folder for a try."""
        return Path(tempfile.mkdtemp(dir=self.root))


@dataclass(slots=True)
class FaultRow:
    """A line of the table."""

    fault: str
    command: str
    tried: int = 0
    lost: list[str] = field(default_factory=list)

    def count(self, problem: str | None) -> None:
        """One more try, and what was wrong with it."""
        self.tried += 1
        if problem is not None:
            self.lost.append(problem)


def digest(path: Path) -> str:
    """Of all that lies there; of nothing: an empty text."""
    found = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    parts = [f"{file.relative_to(path)}:{hashlib.sha256(file.read_bytes()).hexdigest()}" for file in found]
    return "\n".join(parts)


def n_passes(path: Path) -> int:
    """How many passes lie whole in a run's folder, by its files."""
    return len(list(path.glob("passes/*pass-*.parquet")))


def read_back(out: Path) -> tuple[int, int, str] | str:
    """Passes, measured passes and state of a capture with all its events read, or why it cannot be read."""
    try:
        capture = Capture.open(out)
        capture.table("events")
        passes = capture.table("passes", ["warmup"]).column("warmup").to_pylist()
    except HprofError as error:
        return str(error)
    return len(passes), passes.count(False) + passes.count(None), capture.manifest.state


def lost_output(name: str, out: Path, before: str, n_before: int, whole: str | None) -> str | None:
    """What of the output is lost: passes, the old one, or a part of what must be whole; None where nothing is.

    `whole` is the digest of an export; null: the command says that it is whole. An export of tables is as many files.
    """
    now = digest(out)
    if now == before:
        return None  # nothing there as before, or the old one
    if name.startswith("export"):
        known = {*before.splitlines(), *(whole or now).splitlines()}
        return None if known >= set(now.splitlines()) else "an export is partly there"
    found = read_back(out)
    if isinstance(found, str):
        return "no capture, and not the old one" if before or n_before else None if not now else found
    n, n_measured, state = found
    if name.startswith("import"):
        return None if state == "complete" else f"an import is {state}"
    if n < n_before:
        return f"{n_before} passes were finished, {n} are read"
    return "the old capture gave way to one without a measured pass" if before and not n_measured else None


def tried(
    bench: FaultBench,
    name: str,
    codes: set[int],
    *,
    prepare: Callable[[], None] | None = None,
    act: Callable[[RunningCommand], None] | None = None,
    folder: Path | None = None,
    stdout: str = os.devnull,
) -> str | None:
    """One try of a command; what was wrong, or None."""
    work = bench.fresh()
    place = folder or work
    out = place / "out"
    if "--force" in name:
        shutil.copytree(bench.old, out)
    before, inputs = digest(out), digest(bench.old)
    child = start(bench.words(name, out), work / "log", prepare, stdout)
    if act is not None:
        act(child)
    n_before = n_passes(out) if not before else 0
    ended = child.end()
    problem = wrong_end(ended, codes) or lost_output(
        name, out, before, n_before, None if ended.code == 0 else bench.whole[name][0]
    )
    beside = [path.name for path in place.iterdir() if path not in (out, work / "log")]
    if problem is None and beside and ended.code != SIGNALS["SIGKILL"]:
        problem = f"left behind: {beside}"
    if digest(bench.old) != inputs:
        problem = "an input changed"
    shutil.rmtree(work)
    return problem


def wrong_end(ended: EndedCommand, codes: set[int]) -> str | None:
    """What is wrong with how a command ended."""
    if ended.fault is not None:
        return f"{ended.fault}: {ended.stderr.strip()[-400:]}"
    if ended.code not in codes:
        return f"exit code {ended.code}: {ended.stderr.strip()[-200:]}"
    if ended.code == _REFUSED and not ended.stderr.strip():
        return "exit code 2 without a sentence"
    return None


def run_whole(bench: FaultBench, names: list[str]) -> None:
    """Run every command once without a fault."""
    for name in names:
        out = bench.fresh() / "out"
        ended = start(bench.words(name, out), out.with_name("log")).end()
        if wrong_end(ended, {0}):
            raise SystemExit(f"without a fault, {name} ended with {ended.code}: {ended.stderr}")
        bench.whole[name] = digest(out), ended.seconds


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
        writes = "OUT" in COMMANDS[name] and "record" not in name
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
        return tried(bench, name, {0, _REFUSED}, prepare=limit)
    problem = tried(bench, name, {0, _REFUSED}, folder=disk)
    unmount(disk)
    return problem


def read_only(bench: FaultBench, name: str) -> str | None:
    """One try on a disk that cannot be written; the old output, if any, lies there."""
    disk = bench.fresh() / "disk"
    if not mounted(disk, _FREE_DISK):
        return "no file system could be mounted"
    problem = tried(bench, name, {_REFUSED}, folder=disk, prepare=partial(remount_read_only, disk))
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
            files.count(tried(bench, name, {0, _REFUSED}, prepare=few))
            n_bytes = resident_map_bytes() + rng.randrange(1 << 20, 1 << 28)
            little = partial(resource.setrlimit, resource.RLIMIT_AS, (n_bytes, n_bytes))
            memory.count(tried(bench, name, {0, _REFUSED}, prepare=little))
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
        problem = wrong_end(start(["report", str(out), "--json"], work / "report").end(), {0, _REFUSED})
        found = read_back(out)
        if problem is not None or (not isinstance(found, str) and found[0] < max(n_seen, n_before)):
            writing.end()
            return problem or f"{max(n_seen, n_before)} passes were there, {found} is read"
        n_seen = n_seen if isinstance(found, str) else found[0]
    return wrong_end(writing.end(), {0})


def schemas(bench: FaultBench, names: list[str]) -> Iterator[FaultRow]:
    """Captures of another time: keys that are not there yet, keys that are not known yet, another schema."""
    changes: dict[str, tuple[dict[str, object], set[int]]] = {
        "older manifest": ({"rows": None, "machine": None, "link_h2d_gb_s": None}, {0}),
        "newer keys": ({"later": {"a": [1]}}, {0}),
        "newer schema": ({"schema": 2}, {_REFUSED}),
    }
    for fault, (change, codes) in changes.items():
        other = bench.fresh() / "old"
        shutil.copytree(bench.old, other)
        path = other / "manifest.json"
        manifest = {k: v for k, v in (orjson.loads(path.read_bytes()) | change).items() if v is not None}
        path.write_bytes(orjson.dumps(manifest))
        for name in (name for name in names if "OLD" in COMMANDS[name]):
            row = FaultRow(fault, name)
            row.count(tried(FaultBench(bench.root, other, bench.trace, bench.whole), name, codes))
            yield row


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
    bench = FaultBench(root, root / "old", root / "trace.json")
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
