"""What a report says, as plain data: the renderers only lay it out, and read nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from profiler.arithmetic.stats import Comparison, Estimate
from profiler.manifest import Arm
from profiler.metrics import DeviceFigures, Scope
from profiler.report.residency import Residency

if TYPE_CHECKING:
    from profiler.findings import Finding

Figures = dict[str, Estimate | None]  # by the names in profiler.metrics.FIGURES; null: the source cannot give it


@dataclass(frozen=True, slots=True)
class OnDevice:
    """One device's part of an arm's passes: medians over the measured ones."""

    device: int
    bytes_h2d: float | None
    busy_copy_ns: float  # host to device
    hidden_copy_ns: float
    busy_compute_ns: float


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One arm in one cell: its figures over the whole pass and over each phase."""

    figures: dict[Scope, Figures]
    n_passes: int  # measured; warm-ups are left out
    by_device: tuple[OnDevice, ...] = ()  # where passes ran on several devices


@dataclass(frozen=True, slots=True)
class Cell:
    """One (n_prompt, n_gen, n_ubatch, n_depth) and the arms that ran it side by side."""

    n_prompt: int | None
    n_gen: int | None
    n_ubatch: int | None
    n_depth: int | None
    arms: dict[str, ArmFigures]  # the baseline first
    against_baseline: dict[str, dict[str, Comparison | None]]
    same_tokens: bool | None  # null: one arm alone, or no tokens were recorded
    bit_identical: bool | None  # over the arms that compute on the device
    notes: list[str] = field(default_factory=list)  # what differs, and why that is (not) a fault

    @property
    def baseline(self) -> str:
        """The arm that the others are held against."""
        return next(iter(self.arms))


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that `hprof report` shows of one capture."""

    capture: str  # the capture's address
    state: str
    source: str
    baseline: str | None
    model: str | None
    machine: str | None
    created_utc: str | None
    link_h2d_gb_s: float | None  # measured ceiling of host to device copies
    arms: list[Arm]  # requested and effective policies
    cells: list[Cell]
    devices: list[DeviceFigures]
    findings: Sequence[Finding]
    warnings: list[str]
    notes: list[str]  # what is approximated
    cannot_say: list[str]
    dropped: dict[str, int]
    residency: dict[str, Residency] = field(default_factory=dict)  # by arm, where the capture says
    budgets: list[str] = field(default_factory=list)  # what `--vram-budget` left for weights, in words
    summary: str = ""  # the closing paragraph, in plain words

    def to_json(self) -> dict[str, Any]:
        """The JSON contract of `hprof report --json` (schema 1) as plain dicts; no NaN, no infinity."""
        from profiler.report.json_ import report_as_json

        return report_as_json(self)
