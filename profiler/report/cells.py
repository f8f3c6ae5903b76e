"""A cell of a report: the arms that ran one (n_prompt, n_gen, n_ubatch, n_depth), with their figures and verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import pandas as pd

from executor.units import format_count
from profiler.arithmetic.stats import Comparison, Estimate
from profiler.manifest import ManifestArm
from profiler.metrics import FIGURES, Figure, Scope
from profiler.metrics.passes import CELL_KEYS, CellKey, by_cell

Figures = dict[str, Estimate | None]  # by the names in FIGURES and of readings; null: the source cannot give it
_PLACEMENT_SUFFIX: Final = re.compile(r"@(\d+)$")


@dataclass(frozen=True, slots=True)
class DeviceMedians:
    """One device's part of an arm's passes: medians over the measured ones."""

    device: int
    bytes_h2d: float | None
    busy_copy_ns: float  # host to device
    hidden_copy_ns: float
    busy_compute_ns: float
    vram_held_bytes: int | None  # weights, slots and bank; None: the capture does not say it by device

    @property
    def hidden_ratio(self) -> float | None:
        """Hidden / busy copy; None where nothing took time."""
        return self.hidden_copy_ns / self.busy_copy_ns if self.busy_copy_ns else None


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One arm in one cell: its figures over the whole pass and over each phase."""

    figures: dict[Scope, Figures]
    n_passes: int  # measured; warm-ups are left out
    n_copying: int = 0  # of them, those in which a copy from the host to the device was recorded
    n_devices: int = 1  # the most that copied or computed in one of them, each process's its own: figures are sums
    by_device: tuple[DeviceMedians, ...] = ()  # where passes ran on several devices
    hidden_of_all: float | None = None  # hidden / busy copy of all measured passes together; None: nothing took time

    def median(self, name: str, scope: Scope = "pass") -> float | None:
        """One figure's median; None where the source cannot give it, or where the figures of events were not made."""
        found = self.figures[scope].get(name)
        return found.median if found is not None else None


@dataclass(frozen=True, slots=True)
class Cell(CellKey):
    """One (n_prompt, n_gen, n_ubatch, n_depth) and the arms that ran it side by side."""

    arms: dict[str, ArmFigures]  # the baseline first
    against_baseline: dict[str, dict[str, Comparison | None]]
    same_tokens: bool | None  # null: one arm alone, or no tokens were recorded
    bit_identical: bool | None  # over the arms that compute on the device
    notes: list[str] = field(default_factory=list)  # what differs and why it may, where small ubatches were computed
    faults: list[str] = field(default_factory=list)  # what arms that compute in the same places did differently
    own_baselines: dict[str, str] = field(default_factory=dict)  # arms of further placements: the first arm there
    against_own: dict[str, dict[str, Comparison | None]] = field(default_factory=dict)  # those arms against it
    readings: Mapping[str, Figure] = field(default_factory=dict)  # what the program printed itself, by name
    n_not_positive: Mapping[str, int] = field(default_factory=dict)  # judged figure -> passes in which it is 0 or less

    @property
    def baseline(self) -> str:
        """The arm that the others are held against."""
        return next(iter(self.arms))

    def described(self, name: str) -> Figure:
        """A figure, or what the program printed itself, by its name."""
        return self.readings.get(name) or FIGURES[name]

    def not_positive_sentences(self) -> Iterator[str]:
        """What is left out of comparisons because no ratio can be made of it."""
        for name, count in self.n_not_positive.items():
            label = self.described(name).label
            n_passes = sum(arm.n_passes for arm in self.arms.values())
            yield f"{label} is 0 or less in {count} of {format_count(n_passes, 'pass')}, of which no ratio can be made."

    def held_against(self, name: str) -> tuple[str, dict[str, Comparison | None]]:
        """What an arm is best compared with, and how it compares: its own placement's first arm, else the baseline."""
        if name in self.own_baselines:
            return self.own_baselines[name], self.against_own[name]
        return self.baseline, self.against_baseline.get(name, {})


@dataclass(frozen=True, slots=True)
class CellSizes(CellKey):
    """What a cell asked of the model, and the arms that ran it: the report's cells without their figures."""

    arms: tuple[str, ...]


def cell_sizes(passes: pd.DataFrame, arms: Sequence[ManifestArm]) -> list[CellSizes]:
    """Every cell with measured passes, in the order of the report's."""
    order, passes = arm_order(arms), passes[[*CELL_KEYS, "arm", "warmup"]]  # all columns are slow to take apart
    return [CellSizes(*key.sizes, arms=tuple(in_order(rows["arm"].unique(), order))) for key, rows in by_cell(passes)]


AnyCell = TypeVar("AnyCell", Cell, CellSizes)


def telling_cell(cells: Sequence[AnyCell]) -> AnyCell:
    """The cell to speak about: most arms compared, then most tokens."""
    return max(cells, key=lambda cell: (len(cell.arms), cell.n_prompt or 0, cell.n_ubatch or 0))


def arm_order(arms: Sequence[ManifestArm]) -> dict[str, int]:
    """Each arm's place in the manifest, by name."""
    return {arm.name: position for position, arm in enumerate(arms)}


def in_order(arms: Iterable[str], order: Mapping[str, int]) -> list[str]:
    """The arms, each once, as the manifest lists them; the ones it does not know last."""
    return sorted(dict.fromkeys(arms), key=lambda name: order.get(name, len(order)))


def placement_number(arm: ManifestArm) -> int:
    """Which of the run's placements an arm was measured under: 2 for `on@2`, 1 for `on` and for other tools' arms."""
    found = _PLACEMENT_SUFFIX.search(arm.name) if "placement" in arm.options else None
    return int(found[1]) if found else 1


def own_baselines(arms: Sequence[ManifestArm], names: Sequence[str]) -> dict[str, str]:
    """The first arm of its own placement, by arm: for those of another placement than the cell's baseline.

    names: the cell's arms, the baseline first. One that is resident by design is no arm of any placement.
    """
    by_name = {arm.name: arm for arm in arms}
    number = {name: placement_number(by_name[name]) for name in names if name in by_name}
    first: dict[int, str] = {}
    own = {}
    for name, placed in number.items():
        if not by_name[name].is_resident and first.setdefault(placed, name) not in (name, names[0]):
            own[name] = first[placed]
    return own
