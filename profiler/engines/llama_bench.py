"""A/B of a real llama-bench: arms in turn, boot after boot, each repetition a pass of the capture.

result = run_llama_bench(     BenchRequest("build/bin/llama-bench", parse_arms(("off=-pw 0", "on=-pw 1")), ("-m",
"model.gguf", "-p", "2048")),     "traces/pw", )

result = run_llama_bench(     BenchRequest("build/bin/llama-bench", parse_arms(("off=-pw 0", "on=-pw 1")), ("-m",
"model.gguf", "-p", "2048")),     "traces/pw", )
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shlex
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from executor.errors import HprofError
from executor.policies import PREFETCH_ARMS, find_traits
from profiler.engines.process import FinishedProgram, run_program
from profiler.facts import command_output, describe_machine, result_variables
from profiler.importers import import_files
from profiler.importers.llama_bench import cannot_say, doubts, manifest_fields, usable_rows
from profiler.importers.llama_bench.arms import arm_name, arm_settings, cell, pass_columns
from profiler.importers.llama_bench.formats import parse_jsonl
from profiler.importers.llama_bench.rows import BenchRow
from profiler.manifest import Manifest, ManifestArm
from profiler.storage.writer import CaptureWriter, new_capture

# a list that is given twice grows in llama-bench: a flag goes to an arm once, however it is spelled
_LONG: Final = {
    "--model": "-m",
    "--n-prompt": "-p",
    "--n-gen": "-n",
    "--ubatch-size": "-ub",
    "--n-depth": "-d",
    "--repetitions": "-r",
    "--override-tensor": "-ot",
    "--n-cpu-moe": "-ncmoe",
    "--n-gpu-layers": "-ngl",
    "--load-mode": "-lm",
    "--threads": "-t",
    "--flash-attn": "-fa",
}
_VARIABLE: Final = re.compile(r"^[A-Z_][A-Z0-9_]*=")


@dataclass(frozen=True, slots=True)
class BenchArm:
    """A name, extra flags and extra environment variables."""

    name: str
    flags: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def spelled(self) -> str:
        """As it is typed: variables, then flags."""
        return " ".join([*(f"{name}={value}" for name, value in self.environment), shlex.join(self.flags)]).strip()


def parse_arm(text: str) -> BenchArm:
    """Read `NAME=WORDS`: words that look like VARIABLE=VALUE go to the environment, the others to the command line.

    Raises HprofError for anything else.
    """
    name, equals, words = text.partition("=")
    if not (equals and name.strip()):
        raise HprofError(f'--arm {text[:60]!r} is not NAME=FLAGS; write for example --arm on="-pw 1".')
    try:
        split = shlex.split(words)
    except ValueError as error:
        raise HprofError(f"--arm {text[:60]!r} has a quote that does not end ({error}); close it.") from error
    variables = [tuple(word.split("=", 1)) for word in split if _VARIABLE.match(word)]
    flags = tuple(word for word in split if not _VARIABLE.match(word))
    _check_split(name.strip(), flags)
    return BenchArm(name.strip(), flags, tuple((key, value) for key, value in variables))


def _check_split(arm: str, flags: tuple[str, ...]) -> None:
    """llama-bench would take llama-server's `-ts 3,1` for two runs on one device each."""
    for flag, value in itertools.pairwise(flags):
        if flag in ("-ts", "--tensor-split") and "," in value and "/" not in value:
            raise HprofError(
                f"--arm {arm}: {flag} {value[:60]} is llama-server's spelling, and two configurations for llama-bench; "
                f"write {flag} {value[:60].replace(',', '/')}."
            )


def parse_arms(texts: tuple[str, ...]) -> tuple[BenchArm, ...]:
    """Read every `--arm`; HprofError where two have one name."""
    arms = tuple(map(parse_arm, texts))
    names = [arm.name for arm in arms]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise HprofError(f"--arm gives the name {twice!r} twice; give each arm a name of its own.")
    return arms


def without_overridden(common: tuple[str, ...], own: tuple[str, ...]) -> tuple[str, ...]:
    """The flags of all arms less those, with their values, that an arm sets itself."""
    taken = {_LONG.get(word, word) for word in own} & set(_LONG.values())
    dropped = {at + i for at, word in enumerate(common) if _LONG.get(word, word) in taken for i in (0, 1)}
    return tuple(word for at, word in enumerate(common) if at not in dropped)


DEFAULT_TIMEOUT_S: Final = 3600.0
_OUTPUT_FLAGS: Final = ("-o", "--output", "-oe", "--output-err")
_REFUSED: Final = re.compile(r"(?:invalid parameter for argument|unknown argument)[: ]+(\S+)")
_NSYS: Final = ("profile", "-t", "cuda,nvtx", "--cuda-graph-trace=node", "--force-overwrite", "true")


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What to run. `flags` go to every arm; each boot is a process an arm, the order mirrored every other boot."""

    binary: str  # a path, or a name on PATH
    arms: tuple[BenchArm, ...]
    flags: tuple[str, ...] = ()
    boots: int = 1
    nsys: bool = False  # afterwards, one more process an arm under Nsight Systems, which is not timed
    timeout_s: float = DEFAULT_TIMEOUT_S  # of one process


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Addresses of the captures: of the times, and with `nsys` of the traces."""

    capture: str
    traces: str | None = None


def run_llama_bench(
    request: BenchRequest,
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    argv: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> BenchResult:
    """Run every arm `boots` times and write the capture at `out`; with `nsys` also one of traces at `<out>-nsys`.

    say: told what starts, between processes. Raises HprofError when a program is missing, knows not a flag, crashes
    or takes too long; the capture then keeps the processes that ended well, and its state is `interrupted`. There is
    none where no row came.
    """
    programs = _programs(request)
    writer = new_capture(out, force=force, source="llama-bench", argv=list(argv), **_first_fields(request, programs))
    run = _BenchRun(request, programs, writer, say)
    try:
        run.measure()
        writer.finish("complete")
        traces = run.trace(f"{os.fspath(out).rstrip('/')}-nsys", force, argv) if request.nsys else None
    except BaseException:
        if run.n_passes == 0:
            writer.abandon()
        else:
            writer.finish("interrupted" if writer.manifest.state == "running" else "complete")
        raise
    return BenchResult(writer.path, traces)


def interleaved(arms: Sequence[BenchArm], boots: int) -> Iterator[tuple[int, BenchArm]]:
    """(boot, arm) in mirrored order: A B, B A, A B, ..."""
    for boot in range(boots):
        yield from ((boot, arm) for arm in (arms if boot % 2 == 0 else reversed(arms)))


@dataclass(frozen=True, slots=True)
class _Programs:
    bench: str
    nsys: str | None


@dataclass(slots=True)
class _BenchRun:
    request: BenchRequest
    programs: _Programs
    writer: CaptureWriter
    say: Callable[[str], None]
    n_passes: int = 0
    end_ns: int = 0  # of the last pass, on the capture's clock
    seen: dict[str, list[BenchRow]] = field(default_factory=dict)  # label -> rows
    dropped: Counter[str] = field(default_factory=Counter)
    started_ns: int = field(default_factory=time.monotonic_ns)
    first: Manifest = field(init=False)  # what was known before anything ran

    def __post_init__(self) -> None:
        self.first = self.writer.manifest

    def measure(self) -> None:
        """Every arm, every boot; each process's rows are written when it has ended."""
        for boot, arm in interleaved(self.request.arms, self.request.boots):
            self.say(f"{arm.name}: {arm.spelled or 'no flags of its own'} (boot {boot + 1} of {self.request.boots})")
            start_ns = max(self.end_ns, time.monotonic_ns() - self.started_ns)
            done = self._bench([self.programs.bench], arm)
            rows, left_out = usable_rows(parse_jsonl(done.output))
            self.dropped += left_out
            if rows:  # also those that were printed before a crash
                self._record(arm, boot, start_ns, rows)
                self.writer.update_manifest(**self._fields())
            _check(done, self.programs.bench, arm, self.request.timeout_s)
            if not rows:
                raise HprofError(
                    f"{_where(self.programs.bench, arm)}: it printed no row; give it a test, such as -p 512."
                )

    def trace(self, out: str, force: bool, argv: Sequence[str]) -> str:
        """One process an arm under nsys, imported as a capture of its own."""
        with tempfile.TemporaryDirectory(prefix="hprof-nsys-") as folder:
            reports = []
            for number, arm in enumerate(self.request.arms):
                self.say(f"{arm.name}: under Nsight Systems")
                report = Path(folder) / f"arm-{number}.nsys-rep"
                done = self._bench([str(self.programs.nsys), *_NSYS, "-o", str(report), self.programs.bench], arm)
                _check(done, self.programs.bench, arm, self.request.timeout_s)
                reports.append((arm.name, report))
            self.say("importing the traces")
            return import_files([], out, arms=reports, force=force, argv=argv)

    def _bench(self, program: list[str], arm: BenchArm) -> FinishedProgram:
        command = [*program, *without_overridden(self.request.flags, arm.flags), *arm.flags, "-o", "jsonl"]
        return run_program(command, dict(arm.environment), self.request.timeout_s)

    def _record(self, arm: BenchArm, boot: int, start_ns: int, rows: list[BenchRow]) -> None:
        names = arm_settings(rows)
        labels = [f"{arm.name} {arm_name(row, names)}" if names else arm.name for row in rows]
        for label, row in zip(labels, rows, strict=True):
            self.seen.setdefault(label, []).append(row)
        columns = pass_columns(rows, labels, [boot] * len(rows), first_id=self.n_passes, start_ns=start_ns)
        self.writer.write_part("passes", columns, f"boot-{boot:03d}-{self.n_passes:06d}")
        self.n_passes += len(columns["pass_id"])
        self.end_ns = columns["t_end"][-1]

    def _fields(self) -> dict[str, Any]:
        """What the manifest says once rows are there; called after each process."""
        rows = [row for of_label in self.seen.values() for row in of_label]
        told = manifest_fields(rows, [])
        first = self.first
        return {
            "model": told["model"],
            "placement": told["placement"],
            "grid": told["grid"] | first.grid,
            "machine": first.machine | told["machine"],
            "arms": [_manifest_arm(arm, label) for arm in self.request.arms for label in self._labels(arm)],
            "extra": first.extra | told["extra"],
            "cannot_say": cannot_say(rows, "jsonl"),
            "warnings": [*first.warnings, *self._warnings(), *doubts(rows)],
            "dropped": dict(+self.dropped),
        }

    def _labels(self, arm: BenchArm) -> list[str]:
        return [label for label in self.seen if label == arm.name or label.startswith(arm.name + " ")]

    def _warnings(self) -> Iterator[str]:
        """Arms that share no cell, and arms that differ in flags of which llama-bench shows nothing."""
        first, *others = (arm for arm in self.request.arms if self._labels(arm))
        for arm in others:
            if self._cells(arm).isdisjoint(self._cells(first)):
                out = self.writer.path
                yield (
                    f"{first.name} and {arm.name} share no cell, as sizes make cells and not arms; hold them against "
                    f"each other with `hprof compare {out}#{first.name} {out}#{arm.name}`."
                )
            elif not arm.environment and not first.environment and self._settings(arm) == self._settings(first):
                yield f"The rows of {first.name} and {arm.name} name the same settings: did the flags take effect?"

    def _cells(self, arm: BenchArm) -> set[object]:
        return {cell(row) for label in self._labels(arm) for row in self.seen[label]}

    def _settings(self, arm: BenchArm) -> list[dict[str, Any]]:
        distinct: list[dict[str, Any]] = []
        for label in self._labels(arm):
            distinct += [row.settings for row in self.seen[label] if row.settings not in distinct]
        return distinct


def _programs(request: BenchRequest) -> _Programs:
    """The programs, found; HprofError names the one that is missing, or the flag that hprof needs for itself."""
    bench = shutil.which(request.binary)
    if bench is None:
        raise HprofError(f"{request.binary} is no program that can be run; give --bin the path of llama-bench.")
    if not request.arms:
        raise HprofError('there is no arm to run; give at least one, such as --arm off="-pw 0" --arm on="-pw 1".')
    for word in (*request.flags, *(flag for arm in request.arms for flag in arm.flags)):
        if word in _OUTPUT_FLAGS:
            raise HprofError(f"{word} is hprof's to set, as it reads llama-bench's output; leave it out.")
    nsys = shutil.which("nsys") if request.nsys else None
    if request.nsys and nsys is None:
        raise HprofError("--nsys needs Nsight Systems, and nsys is not on PATH; install it, or leave --nsys out.")
    return _Programs(bench, nsys)


def _first_fields(request: BenchRequest, programs: _Programs) -> dict[str, Any]:
    warnings = [] if request.boots > 1 else ["One boot: the arms ran one after the other; a verdict needs --boots 6."]
    return {
        "arms": [_manifest_arm(arm, arm.name) for arm in request.arms],
        "machine": describe_machine(),
        "environment": result_variables(),
        "grid": {"boots": request.boots, "order": "ABBA: arms forward, then backward, boot after boot"},
        "warnings": warnings if len(request.arms) > 1 else [],
        "extra": {
            "engine": {
                "binary": programs.bench,
                "sha256": _sha256(programs.bench),
                "version": (command_output([programs.bench, "--version"]) or "").strip()[:200] or None,
                "flags": list(request.flags),
            }
        },
    }


def _manifest_arm(arm: BenchArm, label: str) -> ManifestArm:
    options = {"flags": list(arm.flags), "environment": dict(arm.environment)}
    prefetch = {f"-pw {flag}": find_traits(name) for flag, name in PREFETCH_ARMS.items()}
    return ManifestArm(label, requested=arm.spelled or None, options=options, traits=prefetch.get(arm.spelled))


def _where(binary: str, arm: BenchArm) -> str:
    return f"{binary}, arm {arm.name} ({arm.spelled})" if arm.spelled else f"{binary}, arm {arm.name}"


def _check(done: FinishedProgram, binary: str, arm: BenchArm, timeout_s: float) -> None:
    """HprofError where the program did not end well."""
    where = _where(binary, arm)
    if done.timed_out:
        raise HprofError(f"{where}: not done after {timeout_s:g} s, so it was ended; ask for fewer repetitions.")
    if refused := _REFUSED.search(done.errors) or _REFUSED.search(done.output):
        raise HprofError(f"{where}: it does not take {refused[1]!r}; use a build that has it, or other flags.")
    if done.code != 0:
        raise HprofError(f"{where}: {done.ending}, its last words: {done.last_words!r}; run it by hand to see why.")


def _sha256(path: str) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
