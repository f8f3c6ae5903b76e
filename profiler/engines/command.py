"""A/B of any commands: arms in turn, boot after boot, each process a pass of the capture.

    arms = parse_commands(("off=./serve --prefetch 0", "on=./serve --prefetch 1"))
    request = CommandRequest(arms, boots=6, rules=parse_rules(("t/s=speed: ([0-9.]+)",)))
    capture = run_commands(request, "traces/serve")

Wall time is measured always, from just before a process starts to its end; with `rules`, what it prints itself too.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from executor.errors import HprofError
from executor.units import format_count
from profiler.engines.arms import EngineArm, check_distinct, command_arm
from profiler.engines.boots import ProcessTurns, Turn, boot_fields, kept_when_ended
from profiler.engines.process import FinishedProgram, run_program
from profiler.engines.readings import Reading, ReadingRule, no_number, read_figures
from profiler.engines.recorded import check_recordable, record_processes
from profiler.manifest import ManifestArm
from profiler.storage.writer import CaptureWriter, PassKey, new_capture

DEFAULT_TIMEOUT_S: Final = 3600.0
CANNOT_SAY: Final = (
    "Of a command its wall time is measured, from its start to its end, with loading and warming up; what happens "
    "inside (copies, kernels, tokens, memory) was not recorded."
)


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """What to run: each boot is a process an arm, the order mirrored every other boot."""

    arms: tuple[EngineArm, ...]
    boots: int = 1
    rules: tuple[ReadingRule, ...] = ()  # figures that the programs print
    record: bool = False  # afterwards, one more process an arm, recorded as `hprof record` does and not timed
    timeout_s: float = DEFAULT_TIMEOUT_S  # of one process


def parse_commands(texts: Sequence[str]) -> tuple[EngineArm, ...]:
    """Read every `--arm NAME=COMMAND`; HprofError where there is none, two have one name, or a program is missing."""
    if not texts:
        raise HprofError('--engine command needs arms, such as --arm off="./serve 0" --arm on="./serve 1".')
    arms = tuple(map(command_arm, texts))
    check_distinct(arms)
    for arm in arms:
        path = dict(arm.environment).get("PATH", os.environ.get("PATH"))
        if shutil.which(arm.words[0], path=path) is None:
            raise HprofError(f"--arm {arm.name}: {arm.words[0]} is no program that can be run; give its path.")
    return arms


def run_commands(
    request: CommandRequest,
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    argv: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> str:
    """Run every arm `boots` times and write the capture at `out`; gives its address.

    say: told what starts, between processes. Raises HprofError where a process does not end well or in time, or an
    arm's first one does not print a figure asked for as a number; the capture then keeps the processes before it, and
    its state is `interrupted`. There is none where no process ended well.
    """
    if request.record:
        check_recordable(os.fspath(out), force=force)
    writer = new_capture(out, force=force, source="command", argv=list(argv), **_first_fields(request))
    run = _CommandRun(request, writer)
    with kept_when_ended(writer):
        turns = ProcessTurns(request.arms, request.boots, say)
        for number, turn in enumerate(turns):
            run.measure(number, turn)
        run.tell_missing()
        writer.finish("complete")
    if request.record:
        record_processes(request.arms, run.end_well, writer, force=force, argv=argv, say=say)
    return writer.path


@dataclass(slots=True)
class _CommandRun:
    request: CommandRequest
    writer: CaptureWriter
    n_missing: Counter[tuple[str, str]] = field(default_factory=Counter)  # (arm, figure) -> processes without it

    def measure(self, number: int, turn: Turn) -> None:
        arm = turn.arm
        done = run_program(arm.words, dict(arm.environment), self.request.timeout_s)
        _check_ending(done, arm, self.request.timeout_s)
        readings = read_figures(done, self.request.rules)
        self._check_read(turn, readings, done)
        self.writer.add_pass_row(
            number,
            PassKey(arm.name, repetition=0, order=number, boot=turn.boot),
            t_start=turn.start_ns,
            t_end=turn.start_ns + done.wall_ns,
            readings=[(reading.name, reading.value) for reading in readings],
        )

    def end_well(self, arm: EngineArm, variables: Mapping[str, str]) -> None:
        """Run an arm that is not timed; HprofError where it does not end well."""
        done = run_program(arm.words, {**dict(arm.environment), **variables}, self.request.timeout_s)
        _check_ending(done, arm, self.request.timeout_s)

    def _check_read(self, turn: Turn, readings: Sequence[Reading], done: FinishedProgram) -> None:
        """A rule that never fits is told at once; what a later process does not print as a number is null, since the
        hours before it are not to be lost.
        """
        for rule, reading in zip(self.request.rules, readings, strict=True):
            if reading.value is None:
                if turn.boot == 0 and reading.text is not None:
                    raise HprofError(f"arm {turn.arm.name}: {no_number(rule, reading.text)}")
                if turn.boot == 0:
                    raise HprofError(
                        f"arm {turn.arm.name}: no line of what it printed matches {rule.spelled}, "
                        f"{done.last_words}; correct the expression."
                    )
                self.n_missing[turn.arm.name, rule.name] += 1

    def tell_missing(self) -> None:
        """A warning for each figure that some processes did not print."""
        if self.n_missing:
            told = [
                f"{format_count(n, 'process')} of {arm} printed no {name} that is a number: it is unknown there."
                for (arm, name), n in self.n_missing.items()
            ]
            self.writer.update_manifest(warnings=[*self.writer.manifest.warnings, *told])


def _first_fields(request: CommandRequest) -> dict[str, Any]:
    rules = {rule.name: {"regex": rule.regex, "better": rule.better} for rule in request.rules}
    return boot_fields(request.arms, request.boots) | {
        "arms": [
            ManifestArm(
                arm.name,
                requested=arm.spelled,
                options={"command": list(arm.words), "environment": dict(arm.environment)},
            )
            for arm in request.arms
        ],
        "cannot_say": [CANNOT_SAY],
        "extra": {"readings": rules} if rules else {},
    }


def _check_ending(done: FinishedProgram, arm: EngineArm, timeout_s: float) -> None:
    at = f"arm {arm.name} ({arm.spelled[:200]})"
    if done.timed_out:
        raise HprofError(f"{at}: not done after {timeout_s:g} s, so it was ended; give it less to do, or --timeout.")
    if done.code != 0:
        raise HprofError(f"{at}: {done.ending}, {done.last_words}; run it by hand to see why.")
