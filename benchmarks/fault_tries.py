"""One try of a command under a fault: started, disturbed, and held to what it may not lose."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.forked_commands import EndedCommand, RunningCommand, start
from executor.errors import HprofError
from executor.files import is_under_way
from profiler.capture import Capture
from profiler.importers import read_file

RUN: Final = "run --device cpu --threads 1 --layers 2 -p 64 -n 2 -ub 32 -r 6 --record-ordering"
COMMANDS: Final = {
    "run": f"{RUN} -o OUT",
    "run --force": f"{RUN} -o OUT --force",
    "import": "import TRACE -o OUT",
    "import --force": "import TRACE -o OUT --force",
    "export chrome": "export OLD -o OUT",
    "export html": "export OLD --format html -o OUT",
    "export csv --force": "export OLD --format csv -o OUT --force",
    "record": "record -o OUT -- PROGRAM",
    "compare": "compare OLD OLD --json",
    "report": "report OLD --json",
    "check": "check OLD --json",
    "predict": "predict --fit OLD --json",
    "advise": "advise --fit OLD --vram-budget 1GiB --json",
}
"""OLD is a capture that is only read, TRACE a trace, OUT what is written, PROGRAM one whose CUDA is a stand-in."""
SIGNALS: Final = {"SIGKILL": 137, "SIGTERM": 143, "Ctrl-C": 130}
REFUSED: Final = 2
_PROGRAM_S: Final = 0.5  # how long PROGRAM may run on after hprof was killed


@dataclass(slots=True)
class FaultBench:
    """Where tries are made: the folder, and what the commands read."""

    root: Path
    old: Path
    trace: Path
    program: list[str]
    whole: dict[str, tuple[str, float]] = field(default_factory=dict)
    """A command's output when nothing disturbs it, as its digest, and the seconds that it takes."""
    n_recorded: int = 0
    """Events that a recording of the program has when nothing disturbs it."""

    def words(self, name: str, out: Path) -> list[str]:
        """The command's arguments, with its paths."""
        given = {"OLD": [str(self.old)], "TRACE": [str(self.trace)], "OUT": [str(out)], "PROGRAM": self.program}
        return [given_word for word in COMMANDS[name].split() for given_word in given.get(word, [word])]

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
    """Of all that lies there in place; of nothing: an empty text."""
    found = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    found = [file for file in found if not is_under_way(file.name)]
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


def lost_recording(out: Path, ended: EndedCommand, n_whole: int) -> str | None:
    """What of a program's recording is lost; None where it is in the capture, or in the spools that import reads.

    Of a program that ended by itself all is there, or something was said.
    """
    spools = out.with_name(f"{out.name}.spool")
    if out.exists():
        if isinstance(found := read_back(out), str):
            return found
        capture = Capture.open(out)
        n_events, told = len(capture.table("events")), list(capture.manifest.warnings)
    elif spools.exists() and any(spools.glob("*-*")):
        try:
            n_events, told = len(read_file(spools).tables["events"]), []
        except HprofError as error:
            return None if ended.code == SIGNALS["SIGKILL"] else str(error)
    else:
        n_events, told = 0, []
    told += [line for line in ended.stderr.splitlines() if line.startswith("hprof: ")]
    is_less = n_events < n_whole and ended.code in (0, REFUSED) and not told
    return f"{n_events} of {n_whole} recorded events are there, and nothing is said" if is_less else None


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
    may_lie, problem = [out, work / "log"], wrong_end(ended, codes)
    if name == "record":
        if ended.code == SIGNALS["SIGKILL"]:
            time.sleep(_PROGRAM_S)
        problem = problem or lost_recording(out, ended, bench.n_recorded)
        may_lie.append(out.with_name("out.spool"))
    else:
        problem = problem or lost_output(name, out, before, n_before, None if ended.code == 0 else bench.whole[name][0])
    beside = [path.name for path in place.iterdir() if path not in may_lie]
    beside += [path.name for path in out.rglob("*.tmp") if is_under_way(path.name)]
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
    if ended.code == REFUSED and not ended.stderr.strip():
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
        if name == "record" and out.exists():
            bench.n_recorded = len(Capture.open(out).table("events"))
