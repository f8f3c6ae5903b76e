"""The tests of a GPU in parallel processes: `python -m tests.gpu.run_parallel`.

    python -m tests.gpu.run_parallel --output logs --total 560                   all of them
    python -m tests.gpu.run_parallel --only one_token,direct,token_replay,both   parts whose names hold these words

A part is a file, or a share of one (`-k`), in a process of its own. Each is ended at its time limit, and what is left
when the total is over does not begin. At the end come tables, as short as possible where only a log's end is kept: one
line a part, each failure with its reason, and the last lines of whatever ended before its tests did. Exit code 1 where
anything failed. What processes on a shared GPU measure (`executor.quants.product_choice`) is kept for none but them.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

import click

ROOT: Final = Path(__file__).resolve().parents[2]
# Files that take longest, cut by words of `-k`; a last part has what none of the words select. Longest first.
_SHARES: Final = {
    "engine": ("reference_logits", "bit_identical and dtype0", "bit_identical and dtype1", "divided"),
    "mixers": ("dtype0",),
    "direct": ("number_of_rows",),
    "token_replay": ("as_step_by_step", "does_not_serve"),
    "ordering": ("fault_is_found",),
    "dequant": (),
    "one_token": (),
    "both": ("parts_add_up",),
}
# Parts that ask when something happened, or how long it took: processes take turns on a GPU.
_ALONE: Final = ("engine, others", "token_replay, others", "both, others", "kineto", "own_code", "record")
_RESULT: Final = re.compile(r"^(\S+\.py::.*?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
_BEGUN: Final = re.compile(r"^(\S+\.py::.*?)\s*$")
_SUMMARY: Final = re.compile(r"^(FAILED|ERROR) (\S+\.py(?:::.*?)?)(?: - (.*))?$")
_SKIPPED: Final = re.compile(r"^SKIPPED \[(\d+)\] \S+: (.*)$")
_OPTIONS: Final = (
    "-o",
    "addopts=--strict-markers",
    "-m",
    "cuda",
    "-v",
    "--tb=short",
    "-rfEs",
    "-p",
    "no:cacheprovider",
)
_POLL_S: Final = 0.05
_MOST_FAILURES: Final = 25  # that are told at the end; logs have all
_REASON_LENGTH: Final = 300
_TAIL_LINES: Final = 8


@dataclass(frozen=True, slots=True)
class Part:
    """What one process runs: files, and of their tests those that an expression of `-k` selects."""

    name: str
    files: tuple[str, ...]
    selected: str = ""
    is_alone: bool = False

    def command(self) -> list[str]:
        """Pytest on it."""
        chosen = ["-k", self.selected] if self.selected else []
        return [sys.executable, "-m", "pytest", *_OPTIONS, *chosen, *self.files]


@dataclass(slots=True)
class Outcome:
    """What became of a part."""

    part: Part
    seconds: float = 0.0
    results: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)
    """Tests, and why each failed."""
    skips: Counter[str] = field(default_factory=Counter)
    """How many tests were skipped for a reason."""
    ended: str = ""
    """What ended it before its tests did."""
    tail: list[str] = field(default_factory=list)
    """The last lines of such a part."""

    @property
    def is_good(self) -> bool:
        """Whether all of its tests ran, and none failed."""
        return not (self.ended or self.failures)


def gpu_parts(root: Path = ROOT) -> list[Part]:
    """All tests marked `cuda`, each once: the longest parts first, and last those that must run alone."""
    found = {path.stem.removeprefix("test_cuda_"): path for path in sorted((root / "tests/gpu").glob("test_cuda_*.py"))}
    names = [name for name in _SHARES if name in found] + [name for name in found if name not in _SHARES]
    parts = [part for name in names for part in _shares(name, found[name].relative_to(root).as_posix())]
    parts.append(Part("tests/executor", ("tests/executor",)))
    return sorted(parts, key=lambda part: part.is_alone)


def _shares(name: str, file: str) -> list[Part]:
    words = _SHARES.get(name, ())
    parts, before = [], ""
    for word in words:
        parts.append(Part(f"{name}, {word}", (file,), f"({word}){before}"))
        before += f" and not ({word})"
    last = f"{name}, others" if words else name
    return [*parts, Part(last, (file,), before.removeprefix(" and "), is_alone=last in _ALONE)]


class ParallelRun:
    """Runs parts, some at once. `command_of` says what a part's process is."""

    def __init__(
        self,
        logs: Path,
        cache: Path,
        *,
        workers: int,
        limit_s: float,
        total_s: float,
        command_of: Callable[[Part], Sequence[str]] = Part.command,
    ) -> None:
        """Two folders, the second for what processes keep; a part may take `limit_s`, all of them `total_s`."""
        self._logs, self._cache, self._workers, self._limit_s = logs, cache, workers, limit_s
        self._command_of = command_of
        self._ends_at = time.monotonic() + total_s
        self._running: list[_Running] = []

    def run(self, parts: Sequence[Part]) -> list[Outcome]:
        """The parts' outcomes, in the order in which they ended."""
        waiting, outcomes = list(parts), []
        try:
            while waiting or self._running:
                if time.monotonic() > self._ends_at:
                    outcomes += [Outcome(part, ended="not begun: the total was over") for part in waiting]
                    waiting.clear()
                while waiting and self._has_room(waiting[0]):
                    self._running.append(self._start(waiting.pop(0)))
                done = [one for one in self._running if one.is_done(self._ends_at)]
                self._running = [one for one in self._running if one not in done]
                for one in done:
                    outcomes.append(one.outcome())
                    _say(outcomes[-1])
                time.sleep(0 if done else _POLL_S)
        finally:
            for one in self._running:
                one.end("")
        return outcomes

    def _has_room(self, part: Part) -> bool:
        if part.is_alone or any(one.part.is_alone for one in self._running):
            return not self._running
        return len(self._running) < self._workers

    def _start(self, part: Part) -> _Running:
        log = self._logs / f"{re.sub(r'[^A-Za-z0-9]+', '-', part.name)}.log"
        threads = max(1, (os.cpu_count() or 1) // (1 if part.is_alone else self._workers))
        kept = {"COLUMNS": "400", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": str(threads)}
        environment = os.environ | kept | {"XDG_CACHE_HOME": str(self._cache)}
        return _Running(part, log, self._command_of(part), environment, self._limit_s)


class _Running:
    """A part's process."""

    def __init__(
        self, part: Part, log: Path, command: Sequence[str], environment: dict[str, str], limit_s: float
    ) -> None:
        self.part, self._log, self._limit_s = part, log, limit_s
        self._begun = time.monotonic()
        self._ended = ""
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def is_done(self, ends_at: float) -> bool:
        """Whether it ended; it is ended here where its time is over, or that of all."""
        now = time.monotonic()
        if self._process.poll() is None and now - self._begun > self._limit_s:
            self.end(f"ended at its limit of {self._limit_s:g} s")
        elif self._process.poll() is None and now > ends_at:
            self.end("ended as the total was over")
        return self._process.poll() is not None

    def end(self, why: str) -> None:
        """Kill it with all that it started."""
        self._ended = why
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def outcome(self) -> Outcome:
        """What its log tells."""
        with self._log.open(encoding="utf-8", errors="replace") as log:
            outcome = read_log(self.part, log)
        outcome.seconds = time.monotonic() - self._begun
        code = self._process.returncode
        outcome.ended = self._ended or ("" if code in (0, 1, 5) else f"exit code {code}")  # 5: no test was selected
        if code == 1 and not outcome.failures:
            outcome.ended = "exit code 1 without a failed test"
        if not outcome.ended:
            outcome.tail.clear()
        return outcome


def read_log(part: Part, log: TextIO) -> Outcome:
    """Results and reasons of pytest's verbose output; the part may have been killed before it said why."""
    outcome, reasons, failed, begun = Outcome(part), dict[str, str](), list[str](), ""
    for line in log:
        text = line.rstrip("\n")
        outcome.tail = [*outcome.tail, text][-_TAIL_LINES:]
        if told := _RESULT.match(text):
            outcome.results[told[2]] += 1
            begun = ""
            failed += [told[1]] if told[2] in ("FAILED", "ERROR") else []
        elif told := _SUMMARY.match(text):
            reasons[told[2]] = told[3] or ""
        elif told := _SKIPPED.match(text):
            outcome.skips[told[2]] += int(told[1])
        elif told := _BEGUN.match(text):
            begun = told[1]
    tests = dict.fromkeys([*failed, *reasons])
    outcome.failures = [(test, reasons.get(test, "")[:_REASON_LENGTH]) for test in tests]
    if begun:
        outcome.tail = [f"under way: {begun}", *outcome.tail]
    return outcome


def _say(outcome: Outcome) -> None:
    click.echo(f"{'ok  ' if outcome.is_good else 'FAIL'} {outcome.part.name} ({outcome.seconds:.0f} s) {outcome.ended}")


def table(outcomes: Iterable[Outcome]) -> list[str]:
    """One line a part, the longest first."""
    rows: list[tuple[str, ...]] = [("part", "passed", "failed", "skipped", "s", "")]
    for one in sorted(outcomes, key=lambda outcome: -outcome.seconds):
        n_failed = one.results["FAILED"] + one.results["ERROR"]
        figures = [str(n or "") for n in (one.results["PASSED"], n_failed, one.results["SKIPPED"])]
        rows.append((one.part.name, *figures, f"{one.seconds:.0f}", one.ended))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_row(row, widths) for row in rows]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *figures, last = (
        cell.ljust(width) if i in (0, len(cells) - 1) else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *figures, last]).rstrip()


def reasons(outcomes: Sequence[Outcome]) -> list[str]:
    """Why tests failed, were skipped or never ran."""
    lines = [f"FAILED {test}: {reason or 'see its log'}" for one in outcomes for test, reason in one.failures]
    if len(lines) > _MOST_FAILURES:
        lines = [*lines[:_MOST_FAILURES], f"and {len(lines) - _MOST_FAILURES} more"]
    for one in outcomes:
        if one.ended:
            lines += [f"{one.part.name}: {one.ended}", *(f"    {line[:_REASON_LENGTH]}" for line in one.tail)]
    skips: Counter[str] = sum((one.skips for one in outcomes), Counter())
    return [*lines, *(f"skipped {n}: {reason}" for reason, n in skips.most_common())]


@click.command()
@click.option("--only", default="", help="Comma list: parts whose names hold one of these words.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=max(1, (os.cpu_count() or 2) // 2),
    show_default=True,
    help="Parts at once.",
)
@click.option("--limit", "limit_s", default=240.0, show_default=True, help="Seconds for a part.")
@click.option("--total", "total_s", default=580.0, show_default=True, help="Seconds for all of it.")
@click.option("--output", type=click.Path(path_type=Path), help="Folder for the logs.  [default: kept nowhere]")
def main(only: str, workers: int, limit_s: float, total_s: float, output: Path | None) -> None:
    """Run the tests marked `cuda` in parallel processes and say what failed and why."""
    words = [word for word in only.split(",") if word]
    parts = [part for part in gpu_parts() if not words or any(word in part.name for word in words)]
    if not parts:
        raise click.UsageError(f"no part's name holds any of {only}; parts are named as the files of tests/gpu.")
    with tempfile.TemporaryDirectory() as passing:
        logs, cache = output or Path(passing), Path(passing) / "cache"
        logs.mkdir(parents=True, exist_ok=True)
        outcomes = ParallelRun(logs, cache, workers=workers, limit_s=limit_s, total_s=total_s).run(parts)
    click.echo("\n".join(["", *reasons(outcomes), "", *table(outcomes)]))
    sys.exit(not all(outcome.is_good for outcome in outcomes))


if __name__ == "__main__":
    main()
