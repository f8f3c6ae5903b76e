"""Arms as processes, in turn: a boot is one process an arm, and the order is mirrored from boot to boot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from executor.units import format_left
from profiler.arithmetic.turns import in_turn
from profiler.engines.arms import EngineArm
from profiler.facts import describe_machine, result_variables
from profiler.storage.writer import CaptureWriter


@dataclass(frozen=True, slots=True)
class Turn:
    """One process: which arm it is, and when it starts on the capture's clock."""

    boot: int
    arm: EngineArm
    start_ns: int


@dataclass(slots=True)
class ProcessTurns:
    """Every arm, every boot, in mirrored order. `say` is told what starts, and how long the rest will take."""

    arms: Sequence[EngineArm]
    boots: int
    say: Callable[[str], None]
    _started_ns: int = field(default_factory=time.monotonic_ns)

    def __iter__(self) -> Iterator[Turn]:
        for number, (boot, arm) in enumerate(in_turn(self.arms, self.boots)):
            self.say(self._progress(number, boot, arm))
            yield Turn(boot, arm, self.now_ns())

    def now_ns(self) -> int:
        """On the capture's clock."""
        return time.monotonic_ns() - self._started_ns

    def _progress(self, number: int, boot: int, arm: EngineArm) -> str:
        n_processes = len(self.arms) * self.boots
        left = f", {format_left(self.now_ns() / 1e9 / number * (n_processes - number))}" if number else ""
        at = f"process {number + 1} of {n_processes}, boot {boot + 1} of {self.boots}{left}"
        return f"{arm.name}: {arm.spelled or 'no flags of its own'} ({at})"


@contextmanager
def kept_when_ended(writer: CaptureWriter) -> Iterator[None]:
    """What ends in here before its time leaves a capture that says so; none where it has no pass."""
    try:
        yield
    except BaseException:
        writer.finish("interrupted")
        raise


def boot_fields(arms: Sequence[EngineArm], boots: int) -> dict[str, Any]:
    """What the manifest says of this machine, and of the order in which the arms ran."""
    warnings = [] if boots > 1 else ["One boot: the arms ran one after the other; a verdict needs --boots 6."]
    return {
        "machine": describe_machine(),
        "environment": result_variables(),
        "grid": {"boots": boots, "order": "ABBA: arms forward, then backward, boot after boot"},
        "warnings": warnings if len(arms) > 1 else [],
    }
