"""Where each arm of a report crosses its baseline, at every workload and depth: for JSON, and for the first screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from profiler.metrics.passes import CellKey
from profiler.report.cells import Cell
from profiler.report.sweep import Crossover, axis_of_most, crosses_once, crossover, sweep_figures
from profiler.report.verdicts import TELLING


@dataclass(frozen=True, slots=True)
class ArmCrossover:
    """One arm against the baseline, over ubatches (or prompts of one ubatch) with the other sizes fixed."""

    arm: str
    baseline: str
    figure: str
    axis: str  # "n_ubatch", or "batch": the prompt, where each is one ubatch
    n_prompt: int | None  # None on the axis "batch"
    n_gen: int | None
    n_depth: int | None
    at: Crossover
    is_last: bool  # whether each side of it holds one order alone

    def to_json(self) -> dict[str, Any]:
        """As plain values: the fields, with those of the crossover beside them."""
        at = asdict(self.at)
        return {name: value for name, value in asdict(self).items() if name != "at"} | at


def all_crossovers(cells: Sequence[Cell]) -> list[ArmCrossover]:
    """Of every arm, in the order of baselines, arms and cells; each line of sizes once. Cells of different baselines
    are never on one line.
    """
    figure = next((name for name in TELLING if any(_has(cell, name) for cell in cells)), None)
    if figure is None:
        return []
    baselines = dict.fromkeys(cell.baseline for cell in cells)
    alike = [[cell for cell in cells if cell.baseline == baseline] for baseline in baselines]
    return [found for group in alike for found in dict.fromkeys(_of_figure(group, figure))]


def _has(cell: Cell, figure: str) -> bool:
    return any(found.get(figure) is not None for found in cell.against_baseline.values())


def _of_figure(cells: Sequence[Cell], figure: str) -> Iterator[ArmCrossover]:
    rows = sweep_figures(cells, figure)
    for arm in dict.fromkeys(rows["arm"]):
        of_arm = rows[(rows["arm"] == arm) & rows["verdict"].notna()]
        for line in dict.fromkeys(CellKey(cell.n_prompt, cell.n_gen, cell.n_ubatch, cell.n_depth) for cell in cells):
            axis, along = axis_of_most(of_arm, line)
            found = crossover(along)
            if found is not None:
                n_prompt = line.n_prompt if axis == "n_ubatch" else None
                once = crosses_once(along, found)
                sizes = (n_prompt, line.n_gen, line.n_depth)
                yield ArmCrossover(arm, cells[0].baseline, figure, axis, *sizes, found, once)
