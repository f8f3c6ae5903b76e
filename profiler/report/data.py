"""What a report says of cells and their arms, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from profiler.arithmetic.stats import Comparison, Estimate
from profiler.metrics import Scope

Figures = dict[str, Estimate | None]  # by the names in profiler.metrics.FIGURES; null: the source cannot give it


@dataclass(frozen=True, slots=True)
class OnDevice:
    """One device's part of an arm's passes: medians over the measured ones."""

    device: int
    bytes_h2d: float | None
    busy_copy_ns: float  # host to device
    hidden_copy_ns: float
    busy_compute_ns: float
    vram_held_bytes: int | None  # weights, slots and bank; null: the capture does not say it by device


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One arm in one cell: its figures over the whole pass and over each phase."""

    figures: dict[Scope, Figures]
    n_passes: int  # measured; warm-ups are left out
    by_device: tuple[OnDevice, ...] = ()  # where passes ran on several devices

    def median(self, name: str, scope: Scope = "pass") -> float | None:
        """One figure's median; null where the source cannot give it."""
        found = self.figures[scope][name]
        return found.median if found is not None else None


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
    own_baselines: dict[str, str] = field(default_factory=dict)  # arms of further placements: the first arm there
    against_own: dict[str, dict[str, Comparison | None]] = field(default_factory=dict)  # those arms against it

    @property
    def baseline(self) -> str:
        """The arm that the others are held against."""
        return next(iter(self.arms))

    def held_against(self, name: str) -> tuple[str, dict[str, Comparison | None]]:
        """What an arm is best compared with, and how it compares: its own placement's first arm, else the baseline."""
        if name in self.own_baselines:
            return self.own_baselines[name], self.against_own[name]
        return self.baseline, self.against_baseline.get(name, {})
