"""Shows how far a run is, between passes and never while one is timed: a bar on a terminal, else a line a minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from executor.units import format_left

_LINE_EVERY_S: Final = 60.0


class RunProgress(Protocol):
    """What the runner tells whoever shows it. Every call comes between two passes."""

    def start(self, n_passes: int) -> None: ...
    def before_pass(self, description: str) -> None: ...
    def after_pass(self, *, counts: bool) -> None: ...
    def stop(self) -> None: ...


class NoProgress:
    """Shows nothing."""

    def start(self, n_passes: int) -> None: ...
    def before_pass(self, description: str) -> None: ...
    def after_pass(self, *, counts: bool) -> None: ...
    def stop(self) -> None: ...


class BarProgress:
    """A bar on stderr. It has no refresh thread, which would disturb what is measured: it draws when called."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _TimeLeft(),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bar.add_task("loading the model", total=None)

    def start(self, n_passes: int) -> None:
        self._bar.update(self._task, total=n_passes)
        self._bar.start()
        self._bar.refresh()

    def before_pass(self, description: str) -> None:
        self._bar.update(self._task, description=description)
        self._bar.refresh()

    def after_pass(self, *, counts: bool) -> None:
        self._bar.advance(self._task, 1 if counts else 0)

    def stop(self) -> None:
        self._bar.stop()


class _TimeLeft(ProgressColumn):
    """`3 min left`, from how long the passes until now took."""

    def render(self, task: Task) -> Text:
        return Text(time_left(int(task.completed), int(task.total or 0), task.elapsed or 0.0))


class LineProgress:
    """A line a minute, for logs: `12 of 48 passes, 3 min left: on -ub 256`. A run of less than a minute writes none."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._started_s = self._told_s = clock()
        self._n_passes = self._n_done = 0
        self._now = ""

    def start(self, n_passes: int) -> None:
        self._n_passes, self._started_s = n_passes, self._clock()

    def before_pass(self, description: str) -> None:
        self._now = description
        now_s = self._clock()
        if now_s - self._told_s >= _LINE_EVERY_S:
            self._told_s = now_s
            left = time_left(self._n_done, self._n_passes, now_s - self._started_s)
            of_all = f"{self._n_done} of {self._n_passes} passes" if self._n_passes else "loading"
            self._write(f"{of_all}{f', {left}' if left else ''}: {self._now}")

    def after_pass(self, *, counts: bool) -> None:
        self._n_done += counts

    def stop(self) -> None: ...


def time_left(n_done: int, n_all: int, elapsed_s: float) -> str:
    """`3 min left`, `40 s left`; empty before the first pass is done, and at the end."""
    if n_done <= 0 or n_all <= n_done:
        return ""
    return format_left(elapsed_s / n_done * (n_all - n_done))


def make_progress() -> RunProgress:
    """A bar where stderr is a terminal, else lines."""
    console = Console(stderr=True)
    return BarProgress() if console.is_terminal else LineProgress(lambda text: console.print(text, markup=False))
