"""What a finding is (a rule that applied, its severity, evidence and advice), and whom it speaks of: one device in
one arm and cell, with the median over its passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from executor.arrays import Floats, Int64
from profiler.metrics.passes import CELL_FLAGS, CELL_KEYS
from profiler.schema import ABSENT

Severity = Literal["info", "warning", "serious"]
SEVERITIES: Final[tuple[Severity, ...]] = ("serious", "warning", "info")

SERIOUS_SHARE: Final = 0.20
WARNING_SHARE: Final = 0.05
IGNORED_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a finding is seen best: its costliest event, or gap. Times are ns on the capture's clock."""

    pass_id: int | None
    t_start: int
    t_end: int


@dataclass(frozen=True, slots=True)
class Finding:
    """`evidence` carries figures, `advice` says what to do about them; both are plain sentences. `moments`: one for
    each arm or device that the evidence speaks of, none where nothing on a timeline shows it.
    """

    rule: str
    severity: Severity
    evidence: str
    advice: str
    moments: tuple[Moment, ...] = ()


def severity_of(lost_ns: float, window_ns: float) -> Severity | None:
    """By the share of the measured time that is at stake; None below 1 %."""
    share = lost_ns / window_ns if window_ns > 0 else 0.0
    if share < IGNORED_SHARE:
        return None
    return "serious" if share >= SERIOUS_SHARE else "warning" if share >= WARNING_SHARE else "info"


@dataclass(frozen=True, slots=True)
class Subject:
    """One device of one process, in one arm and cell where the capture has passes."""

    arm: str | None
    sizes: tuple[int | None, ...] | None  # of the cell, in the order of CELL_KEYS; null: the rows are in no pass
    process: int | None
    device: int | None


@dataclass(frozen=True, slots=True)
class Judged:
    """A group of which a rule has something to say."""

    group: int
    severity: Severity
    label: str  # `Arm on, GPU 0 of process 111, a pass (median of 6)`


class Subjects:
    """The groups of contexts (pass, process, device); `of_context` says whose each is.

    device: what a device is called, `GPU` or `device`.
    """

    def __init__(self, keys: dict[str, Int64], passes: pa.Table, device: str = "GPU") -> None:
        self._device = device
        told = _arms_and_sizes(passes)
        index: dict[Subject, int] = {}
        of_context = []
        for pass_id, process, device in zip(*(keys[n].tolist() for n in ("pass_id", "process", "device")), strict=True):
            known = (None if number == ABSENT else number for number in (process, device))
            of_context.append(index.setdefault(Subject(*told.get(pass_id, (None, None)), *known), len(index)))
        self.members = list(index)
        self.of_context = np.array(of_context, np.int64)
        self.n_passes = np.bincount(self.of_context, minlength=len(index))
        cells = {group.sizes for group in self.members if group.sizes is not None}
        self._has_passes = bool(cells)
        self._varying = [len(set(values)) > 1 for values in zip(*cells, strict=True)]

    def __len__(self) -> int:
        return len(self.members)

    def typical(self, values: npt.NDArray[Any]) -> Floats:
        """Median of `values` (one a context) over the passes of each group."""
        ordered = values[np.lexsort((values, self.of_context))]
        first = np.cumsum(self.n_passes) - self.n_passes
        middle: Floats = (
            ordered[first + (self.n_passes - 1) // 2].astype(np.float64) + ordered[first + self.n_passes // 2]
        ) / 2
        return middle

    def judged(
        self, lost_ns: npt.NDArray[Any], window_ns: npt.NDArray[Any], floor: Severity | None = None
    ) -> Iterator[Judged]:
        """Groups that lose enough of their window to be told of; of each arm's cells the one that loses most.

        What lies outside of the passes, where there are any, was not meant to be measured.
        floor: the severity of those that lose anything, but less than that.
        """
        share = np.divide(lost_ns, window_ns, out=np.zeros(len(self)), where=window_ns > 0)
        worst: dict[tuple[Any, ...], list[int]] = {}
        for number in np.flatnonzero(lost_ns > 0).tolist():
            group = self.members[number]
            is_measured = group.sizes is not None or not self._has_passes
            if is_measured and (severity_of(lost_ns[number], window_ns[number]) or floor) is not None:
                worst.setdefault((group.arm, group.process, group.device), []).append(number)
        for alike in worst.values():
            number = max(alike, key=lambda number: float(share[number]))
            severity = severity_of(lost_ns[number], window_ns[number]) or floor
            if severity is not None:
                yield Judged(number, severity, self._label(number, len(alike)))

    def _label(self, number: int, n_alike: int) -> str:
        group = self.members[number]
        words = [] if group.arm is None else [f"arm {group.arm}"]
        if (cell := self._cell(group)) is not None:
            words.append(cell + (f" (the worst of {n_alike} sizes)" if n_alike > 1 else ""))
        device = f"the {self._device}" if group.device is None else f"{self._device} {group.device}"
        words.append(device + ("" if group.process is None else f" of process {group.process}"))
        words.append(self._scope(number))
        text = ", ".join(words)
        return text[0].upper() + text[1:]

    def _cell(self, group: Subject) -> str | None:
        """`-ub 512`: the sizes that tell the capture's cells apart."""
        sizes = zip(CELL_FLAGS.values(), group.sizes or (), self._varying, strict=False)
        return " ".join(f"{flag} {size}" for flag, size, varies in sizes if varies and size is not None) or None

    def _scope(self, number: int) -> str:
        if self.members[number].sizes is None:
            return "over the trace"
        n_passes = int(self.n_passes[number])
        return "in its only pass" if n_passes == 1 else f"a pass (median of {n_passes})"


def _arms_and_sizes(passes: pa.Table) -> dict[int | None, tuple[str | None, tuple[int | None, ...]]]:
    pass_ids, arms, *sizes = (passes[name].to_pylist() for name in ("pass_id", "arm", *CELL_KEYS))
    cells: list[tuple[int | None, ...]] = list(zip(*sizes, strict=True))
    return {number: (arm, cell) for number, arm, cell in zip(pass_ids, arms, cells, strict=True)}
