"""Runs a command under a recording: its input, output and signals are its own, and its exit code is passed on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from executor.errors import HprofError
from profiler.recording.session import Recording

RESUME_SIGNAL: Final = signal.SIGUSR1
PAUSE_SIGNAL: Final = signal.SIGUSR2
_LOOK_S: Final = 0.1
_LAST_WORDS_S: Final = 2.0  # for processes that end with the command, but a little later
_FLUSHED_S: Final = 0.2  # how long a process takes to notice that nobody waits for it


@dataclass(frozen=True, slots=True)
class Finished:
    """How the command ended."""

    code: int  # as a shell has it: 128 and the signal's number where one ended it
    still_running: list[int]  # recorded processes that the command has left behind


def run_recorded(
    command: Sequence[str], recording: Recording, variables: Mapping[str, str], tell: Callable[[str], None]
) -> Finished:
    """Run `command` to its end and let the recording finish.

    variables: added to its environment. tell: shows a sentence at once. Raises HprofError where the command cannot be
    started, or another profiler is set up.
    """
    outside = dict(os.environ) | dict(variables)
    environment = outside | recording.environment(outside)
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise HprofError(f"{command[0]} cannot be run: {error.strerror}; name a program that can.") from error
    with _signals(process, recording):
        _wait(process, recording, tell)
        still_running = _wait_for_others(recording)
    recording.finish()
    if still_running:
        time.sleep(_FLUSHED_S)
    _tell_news(recording, tell)
    code = process.returncode
    return Finished(code if code >= 0 else 128 - code, still_running)


def _wait(process: subprocess.Popen[bytes], recording: Recording, tell: Callable[[str], None]) -> None:
    told_full = False
    while not _has_ended(process):
        _tell_news(recording, tell)
        if (reason := recording.control.full) is not None and not told_full:
            told_full = True
            tell(f"recording stopped ({reason}); the program runs on.")


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it ends within a moment."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(_LOOK_S)
    return process.returncode is not None


def _tell_news(recording: Recording, tell: Callable[[str], None]) -> None:
    for sentence in recording.new_problems():
        tell(sentence)


def _wait_for_others(recording: Recording) -> list[int]:
    """Recorded processes that still run after a moment's patience."""
    end = time.monotonic() + _LAST_WORDS_S
    while True:
        running = [number for number in recording.processes() if _is_running(number)]
        if not running or time.monotonic() > end:
            return running
        time.sleep(_LOOK_S)


def _is_running(process: int) -> bool:
    """Whether there is such a process, and it is more than a zombie that nobody has buried."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


@contextmanager
def _signals(process: subprocess.Popen[bytes], recording: Recording) -> Iterator[None]:
    """Inside, signals that end go to the command alone, whose end is waited for; others start and stop the recording.

    Ctrl-C reaches the command from the terminal itself.
    """

    def forward(number: int, _frame: FrameType | None) -> None:
        if process.poll() is None:
            process.send_signal(number)

    handlers: dict[int, Callable[[int, FrameType | None], None]] = {
        signal.SIGINT: lambda _number, _frame: None,
        signal.SIGTERM: forward,
        signal.SIGHUP: forward,
        RESUME_SIGNAL: lambda _number, _frame: recording.resume(),
        PAUSE_SIGNAL: lambda _number, _frame: recording.pause(),
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
