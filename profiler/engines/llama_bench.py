"""A/B of a real llama-bench: arms in turn, boot after boot, each repetition a pass of the capture.

    arms = parse_arms(("off=-pw 0", "on=-pw 1"))
    request = BenchRequest("build/bin/llama-bench", arms, ("-m", "model.gguf"), boots=6)
    result = run_llama_bench(request, "traces/pw")

With `other_binaries` every arm runs under every build, in turn like everything else.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from executor.errors import HprofError
from executor.policies import PREFETCH_ARMS, find_traits
from profiler.engines.arms import EngineArm
from profiler.engines.bench_arms import arms_of_builds, without_overridden
from profiler.engines.bench_program import (
    BenchProgram,
    build_names,
    check_ending,
    check_flags,
    check_override,
    find_nsys,
    find_program,
    knows_progress,
    where,
)
from profiler.engines.boots import ProcessTurns, Turn, boot_fields, kept_when_ended
from profiler.engines.process import FinishedProgram, run_program
from profiler.engines.recorded import check_recordable, record_processes
from profiler.engines.repetitions import ProgressLines, with_repetitions
from profiler.importers import Cut, TraceInput, import_files
from profiler.importers.llama_bench import KNOWN_TO_A_RUN, cannot_say, doubts, manifest_fields, usable_rows
from profiler.importers.llama_bench.arms import arm_name, arm_settings, cell, pass_columns
from profiler.importers.llama_bench.formats import parse_jsonl
from profiler.importers.llama_bench.rows import BenchRow
from profiler.manifest import Manifest, ManifestArm
from profiler.storage.writer import CaptureWriter, new_capture

DEFAULT_TIMEOUT_S: Final = 3600.0
_BESIDE_TIMES: Final = {"extra": {"recorded_by": "hprof run --nsys", "untimed": True}}
_NSYS: Final = ("profile", "-t", "cuda,nvtx", "--cuda-graph-trace=node", "--force-overwrite", "true")


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What to run. `flags` go to every arm; each boot is a process an arm, the order mirrored every other boot."""

    binary: str  # a path, or a name on PATH
    arms: tuple[EngineArm, ...]
    flags: tuple[str, ...] = ()
    boots: int = 1
    nsys: bool = False  # afterwards, one more process an arm under Nsight Systems, which is not timed
    record: bool = False  # afterwards, one more process an arm, recorded as `hprof record` does and not timed
    timeout_s: float = DEFAULT_TIMEOUT_S  # of one process
    other_binaries: tuple[str, ...] = ()  # further builds: each arm runs under each


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Addresses of the captures: of the times, with `nsys` of the traces, and with `record` of the recording."""

    capture: str
    traces: str | None = None
    recording: str | None = None


def run_llama_bench(
    request: BenchRequest,
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    argv: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> BenchResult:
    """Run every arm `boots` times and write the capture at `out`; with `nsys` also one of traces at
    `<out>-nsys`, with `record` one at `<out>-recorded`, whose figures stand beside the times.

    say: told what starts, between processes. Raises HprofError when a program is missing, knows not a flag, crashes
    or takes too long; the capture then keeps the processes that ended well, and its state is `interrupted`. There is
    none where no row came.
    """
    check_flags(request.flags, request.arms)
    programs = [find_program(binary) for binary in (request.binary, *request.other_binaries)]
    nsys = find_nsys() if request.nsys else None
    if request.other_binaries:
        request = replace(request, arms=arms_of_builds(request.arms, build_names(programs)))
    if request.record:
        check_recordable(os.fspath(out), force=force)
    writer = new_capture(out, force=force, source="llama-bench", argv=list(argv), **_first_fields(request, programs))
    run = _BenchRun(request, programs, nsys, writer, say)
    with kept_when_ended(writer):
        run.measure()
        writer.finish("complete")
    traces = run.trace(f"{os.fspath(out).rstrip('/')}-nsys", force, argv) if request.nsys else None
    recording = None
    if request.record:
        recording = record_processes(request.arms, run.record, writer, force=force, argv=argv, say=say)
    return BenchResult(writer.path, traces, recording)


@dataclass(slots=True)
class _BenchRun:
    request: BenchRequest
    programs: Sequence[BenchProgram]
    nsys: str | None
    writer: CaptureWriter
    say: Callable[[str], None]
    n_passes: int = 0
    end_ns: int = 0  # of the last pass, on the capture's clock
    seen: dict[str, list[BenchRow]] = field(default_factory=dict)  # label -> rows
    dropped: Counter[str] = field(default_factory=Counter)
    first: Manifest = field(init=False)  # what was known before anything ran

    def __post_init__(self) -> None:
        self.first = self.writer.manifest

    def measure(self) -> None:
        """Every arm, every boot; each process's rows are written when it has ended."""
        for turn in ProcessTurns(self.request.arms, self.request.boots, self.say):
            arm = turn.arm
            command = [self._binary(arm), *self._words(arm)]
            done = run_program(command, dict(arm.environment), self.request.timeout_s)
            check_override(done, self._binary(arm), arm)
            rows, left_out = usable_rows(parse_jsonl(done.output))
            self.dropped += left_out
            if rows:  # also those that were printed before a crash
                self._record(turn, rows)
                self.writer.update_manifest(**self._fields())
            check_ending(done, self._binary(arm), arm, command, self.request.timeout_s)
            if not rows:
                raise HprofError(f"{where(self._binary(arm), arm)}: it printed no row; give it a test, such as -p 512.")

    def trace(self, out: str, force: bool, argv: Sequence[str]) -> str:
        """One process an arm under nsys, imported as a capture of its own."""
        with tempfile.TemporaryDirectory(prefix="hprof-nsys-") as folder:
            reports = []
            for number, arm in enumerate(self.request.arms):
                self.say(f"{arm.name}: under Nsight Systems")
                report = Path(folder) / f"arm-{number}.nsys-rep"
                self._end_well(arm, under=[str(self.nsys), *_NSYS, "-o", str(report)])
                reports.append(TraceInput(report, arm.name))
            self.say("importing the traces")
            return import_files(reports, out, force=force, argv=argv, known=_BESIDE_TIMES)

    def record(self, arm: EngineArm, variables: Mapping[str, str]) -> Cut | None:
        """Run an arm that is recorded; gives what makes passes of its repetitions, where this build tells of them."""
        if not knows_progress(self._binary(arm)):
            self._end_well(arm, variables)
            return None
        lines = ProgressLines()
        done = self._end_well(arm, variables, see_errors=lines, flags=["--progress"])
        rows, _ = usable_rows(parse_jsonl(done.output))
        return lambda imported: with_repetitions(imported, rows, lines)

    def _end_well(
        self,
        arm: EngineArm,
        variables: Mapping[str, str] = {},
        *,
        under: Sequence[str] = (),
        flags: Sequence[str] = (),
        see_errors: Callable[[bytes], None] = lambda _: None,
    ) -> FinishedProgram:
        """Run an arm that is not timed, `under` another program; HprofError where it does not end well."""
        command = [*under, self._binary(arm), *self._words(arm), *flags]
        done = run_program(command, {**dict(arm.environment), **variables}, self.request.timeout_s, see_errors)
        check_ending(done, self._binary(arm), arm, command, self.request.timeout_s)
        return done

    def _binary(self, arm: EngineArm) -> str:
        return arm.binary or self.programs[0].path

    def _words(self, arm: EngineArm) -> list[str]:
        return [*without_overridden(self.request.flags, arm.words), *arm.words, "-o", "jsonl"]

    def _record(self, turn: Turn, rows: list[BenchRow]) -> None:
        arm, boot, start_ns = turn.arm, turn.boot, max(self.end_ns, turn.start_ns)
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
            "arms": [
                _manifest_arm(arm, label, self.seen[label]) for arm in self.request.arms for label in self._labels(arm)
            ],
            "extra": first.extra | told["extra"],
            "cannot_say": [text for text in cannot_say(rows, "jsonl") if text not in KNOWN_TO_A_RUN],
            "warnings": [*first.warnings, *self._warnings(), *doubts(rows)],
            "dropped": dict(+self.dropped),
        }

    def _labels(self, arm: EngineArm) -> list[str]:
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

    def _cells(self, arm: EngineArm) -> set[object]:
        return {cell(row) for label in self._labels(arm) for row in self.seen[label]}

    def _settings(self, arm: EngineArm) -> list[dict[str, Any]]:
        distinct: list[dict[str, Any]] = []
        for label in self._labels(arm):
            distinct += [row.settings for row in self.seen[label] if row.settings not in distinct]
        return distinct


def _first_fields(request: BenchRequest, programs: Sequence[BenchProgram]) -> dict[str, Any]:
    return boot_fields(request.arms, request.boots) | {
        "arms": [_manifest_arm(arm, arm.name, []) for arm in request.arms],
        "extra": {
            "engine": {
                "binary": programs[0].path,
                "sha256": programs[0].sha256,
                "version": programs[0].version,
                "flags": list(request.flags),
                "builds": [asdict(program) | {"commit": program.commit} for program in programs],
            }
        },
    }


def _manifest_arm(arm: EngineArm, label: str, rows: Sequence[BenchRow]) -> ManifestArm:
    """The arm as it was asked for, and the build that its rows name."""
    options = {"flags": list(arm.words), "environment": dict(arm.environment)}
    if rows and (commit := rows[0].settings.get("build_commit")) is not None:
        options["build"] = f"{commit} ({rows[0].settings.get('build_number')})"
    prefetch = {f"-pw {flag}": find_traits(name) for flag, name in PREFETCH_ARMS.items()}
    return ManifestArm(label, requested=arm.spelled or None, options=options, traits=prefetch.get(arm.spelled))
