"""Shows how far a run is: between passes only, never while one is timed."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


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
            TimeElapsedColumn(),
            TimeRemainingColumn(),
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


def make_progress() -> RunProgress:
    """A bar where stderr is a terminal, else nothing."""
    return BarProgress() if Console(stderr=True).is_terminal else NoProgress()
