"""A small line of a figure over the sizes of the ubatch, A and B in one drawing: SVG, and its figures in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from dashboard.figures.style import BLUE, GREY
from executor.units import format_value
from profiler.metrics import FIGURES
from profiler.report.cells import Cell

_WIDTH, _HEIGHT, _AIR = 180, 44, 6
_LEAST_SLOPE: Final = 0.05  # of the largest value


def over_ubatches(cells: Sequence[Cell], cell: Cell, arm: str, name: str) -> dict[int, float]:
    """The arm's medians by the size of the ubatch, in the cells that differ from this one in it alone; none where they
    are so alike that a line, which fills its height, would show chance as a slope.
    """
    alike = [each for each in cells if replace(each.key, n_ubatch=None) == replace(cell.key, n_ubatch=None)]
    known = {each.n_ubatch or 0: each.arms[arm].median(name) for each in alike if arm in each.arms}
    line = {size: value for size, value in sorted(known.items()) if value is not None}
    return line if line and max(line.values()) - min(line.values()) > _LEAST_SLOPE * max(line.values()) else {}


def sparkline(lines: Mapping[str, Mapping[int, float]], chosen: int | None) -> str | None:
    """SVG of each arm's line on logarithmic scales, the last one in colour, a ring at the chosen size; null where no
    line has two points above 0.
    """
    drawn = {arm: {x: y for x, y in line.items() if x > 0 and y > 0} for arm, line in lines.items()}
    drawn = {arm: line for arm, line in drawn.items() if len(line) > 1}
    if not drawn:
        return None
    sizes = np.log([x for line in drawn.values() for x in line])
    values = np.log([y for line in drawn.values() for y in line.values()])
    parts = []
    for arm, line in drawn.items():
        colour = BLUE if arm == list(lines)[-1] else GREY
        x = _AIR + _share(np.log(list(line)), sizes) * (_WIDTH - 2 * _AIR)
        y = _HEIGHT - _AIR - _share(np.log(list(line.values())), values) * (_HEIGHT - 2 * _AIR)
        points = " ".join(f"{at:.1f},{high:.1f}" for at, high in zip(x, y, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if chosen in line:
            at = list(line).index(chosen)
            parts.append(
                f'<circle cx="{x[at]:.1f}" cy="{y[at]:.1f}" r="4" fill="none" stroke="{colour}" stroke-width="2"/>'
            )
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'


def _share(values: np.ndarray, among: np.ndarray) -> np.ndarray:
    span = among.max() - among.min()
    return (values - among.min()) / span if span > 0 else np.full(len(values), 0.5)


def in_words(lines: Mapping[str, Mapping[int, float]], name: str) -> str:
    """`Time to first token over ubatches of 64 to 512: off 9.1 ms to 3.2 ms, on 8.8 ms to 2.1 ms.`"""
    unit = FIGURES[name].unit
    sizes = sorted({size for line in lines.values() for size in line})
    told = [
        f"{arm} {format_value(line[min(line)], unit)} to {format_value(line[max(line)], unit)}"
        for arm, line in lines.items()
    ]
    return f"{FIGURES[name].headline} over ubatches of {sizes[0]:,} to {sizes[-1]:,} tokens: {', '.join(told)}."
