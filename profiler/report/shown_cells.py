"""Which cells and arms the first screen shows where there are more than it has room for: the best, the worst, and
those beside a crossover.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from executor.errors import HprofError
from profiler.arithmetic.stats import Comparison
from profiler.metrics import FIGURES, Figure
from profiler.metrics.passes import take_sizes, varied_keys
from profiler.report.cells import Cell
from profiler.report.report import Report
from profiler.report.summary import summarise
from profiler.report.sweep import ArmCrossover
from profiler.report.verdicts import TELLING, as_fast


def telling_figure(cell: Cell) -> str | None:
    """The first of TELLING that the cell's baseline has."""
    return next((name for name in TELLING if cell.arms[cell.baseline].median(name) is not None), None)


def told_comparison(cell: Cell, name: str) -> tuple[Comparison, str] | None:
    """How an arm compares with the baseline in the figure that tells the cell's story, and that figure."""
    figure = telling_figure(cell)
    found = cell.against_baseline.get(name, {}).get(figure) if figure is not None else None
    return None if found is None or figure is None else (found, figure)


def printed_figure(cell: Cell) -> str | None:
    """The first figure that programs printed themselves and that was compared: the answer leads with it and ranks arms
    by it, as it is what their user means. None where there is none.
    """
    for key, figure in cell.readings.items():
        if figure.better is not None and any(of.get(key) is not None for of in cell.against_baseline.values()):
            return key
    return None


def led_comparison(cell: Cell, name: str) -> tuple[Comparison, Figure] | None:
    """How an arm compares with the baseline in what the answer leads with, and that figure."""
    if (printed := printed_figure(cell)) is not None:
        found = cell.against_baseline.get(name, {}).get(printed)
        return None if found is None else (found, cell.readings[printed])
    told = told_comparison(cell, name)
    return None if told is None else (told[0], FIGURES[told[1]])


def factor(cell: Cell, name: str) -> float | None:
    """How many times as fast as the baseline; None where it was not compared, or did other work."""
    told = told_comparison(cell, name)
    if told is None or told[0].is_other_work:
        return None
    return as_fast(told[0].ratio, told[1])


def best_and_worst(cells: Sequence[Cell], name: str) -> tuple[Cell, Cell] | None:
    """The cells in which an arm did best and worst; None where it was compared in none."""
    known = [(found, cell) for cell in cells if (found := factor(cell, name)) is not None]
    if not known:
        return None
    return max(known, key=lambda pair: pair[0])[1], min(known, key=lambda pair: pair[0])[1]


def shown_cells(cells: Sequence[Cell], crossovers: Sequence[ArmCrossover], best: str | None, most: int) -> list[Cell]:
    """At most so many cells, in their order: best and worst of the best arm, those beside crossovers, the ends, then
    as evenly as it goes.
    """
    if len(cells) <= most:
        return list(cells)
    wanted: dict[int, None] = {}
    for position in _in_order_of_need(cells, crossovers, best):
        if len(wanted) < most:
            wanted[position] = None
    return [cells[position] for position in sorted(wanted)]


def _in_order_of_need(cells: Sequence[Cell], crossovers: Sequence[ArmCrossover], best: str | None) -> Iterator[int]:
    ends = best_and_worst(cells, best) if best is not None else None
    for cell in ends or ():
        yield next(position for position, other in enumerate(cells) if other is cell)
    for found in sorted(crossovers, key=lambda one: one.arm != best):
        for position, cell in enumerate(cells):
            size = cell.largest_ubatch if found.axis == "n_ubatch" else cell.n_prompt
            if (cell.n_gen, cell.n_depth) == (found.n_gen, found.n_depth) and size in (found.at.below, found.at.above):
                yield position
    last = len(cells) - 1
    yield from (0, last)
    step = 1
    while step <= last:  # halves, quarters, eighths: whichever are left when the room ends lie apart
        yield from (round(last * part / (2 * step)) for part in range(1, 2 * step, 2))
        step *= 2
    yield from range(len(cells))


def shown_arms(
    cells: Sequence[Cell], crossovers: Sequence[ArmCrossover], baseline: str, resident: set[str], most: int
) -> list[str]:
    """At most so many arms beside the baseline, as the cells order them: the best, the worst, those with a crossover.

    resident: arms that keep everything on the device by design; they are no choice, and leave first.
    """
    names = list(dict.fromkeys(name for cell in cells for name in cell.arms if name not in (cell.baseline, baseline)))
    ranked = by_speed(cells, [name for name in names if name not in resident])
    crossing = [found.arm for found in crossovers if found.arm in ranked]
    wanted = dict.fromkeys([*ranked[:1], *ranked[-1:], *crossing, *ranked, *names])
    chosen = list(wanted)[:most]
    return [name for name in names if name in chosen]


def by_speed(cells: Sequence[Cell], names: Sequence[str]) -> list[str]:
    """The fastest first, by the mean of the logarithms of its factors; those that were not compared last."""
    return sorted(names, key=lambda name: -_mean_log(cells, name))


def _mean_log(cells: Sequence[Cell], name: str) -> float:
    logs = [math.log(found) for cell in cells if (found := factor(cell, name))]
    return sum(logs) / len(logs) if logs else -math.inf


def with_cells(report: Report, named: Sequence[str]) -> Report:
    """The report of these cells alone, each named by sizes as `ub=512,d=0`; the report itself where none is named.

    Raises HprofError for a name that no cell has.
    """
    if not named:
        return report
    keys = varied_keys(report.cells)
    chosen = [cell for cell in report.cells if any(_is_named(cell, name) for name in named)]
    known = ", ".join(cell.named(keys) for cell in report.cells) or "none"
    for name in named:
        if not any(_is_named(cell, name) for cell in chosen):
            raise HprofError(f"{report.capture} has no cell --cell '{name}'; its cells: {known}.")
    shown = replace(report, cells=chosen)
    return replace(shown, summary=summarise(shown))


def _is_named(cell: Cell, name: str) -> bool:
    sizes, rest = take_sizes(name.replace(" ", ""))
    if rest or not sizes:
        raise HprofError(f"--cell '{name}' names no sizes: write ub=512 or ub=512,d=0, of p, n, ub and d.")
    return cell.has(sizes)
