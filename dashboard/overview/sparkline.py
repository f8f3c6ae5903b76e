"""A small line over the sizes of the ubatch for a card: how B compares with A, or one arm's figure. SVG, and its
figures in words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from dashboard.figures.style import BLUE, GREY
from executor.arrays import Floats
from executor.units import format_factor, format_value
from profiler.metrics import FIGURES, JUDGED
from profiler.report.cells import Cell
from profiler.report.verdicts import as_fast

_WIDTH, _HEIGHT, _AIR = 180, 44, 6
_LEAST_SLOPE: Final = 0.05  # of the largest value

Line = Mapping[int, float]
"""By tokens in the ubatch, ascending."""


def over_ubatches(cells: Sequence[Cell], cell: Cell, arm: str, name: str) -> Line:
    """The arm's medians in the cells that differ from this one in the ubatch alone."""
    alike = [each for each in cells if replace(each.key, n_ubatch=None) == replace(cell.key, n_ubatch=None)]
    known = {each.n_ubatch or 0: each.arms[arm].median(name) for each in alike if arm in each.arms}
    return {size: value for size, value in sorted(known.items()) if value is not None and value > 0}


def against(a: Line, b: Line, name: str) -> Line:
    """How many times as fast B is as A, or of what is no speed how many times as much it takes."""
    ratios = {size: b[size] / a[size] for size in b if size in a}
    return {size: as_fast(ratio, name) for size, ratio in ratios.items()} if name in JUDGED else ratios


def tells(line: Line) -> bool:
    """Whether a line, which fills its height, would show more than chance as a slope."""
    values = line.values()
    return len(line) > 1 and max(values) - min(values) > _LEAST_SLOPE * max(values)


def sparkline(line: Line, chosen: int | None, reference: float | None = None) -> str:
    """SVG of a line on logarithmic scales, a ring at the chosen size, and a dashed line at the reference."""
    sizes, values = np.log([float(max(size, 1)) for size in line]), np.log(list(line.values()))
    among = values if reference is None else np.append(values, np.log(reference))
    x = _AIR + _share(sizes, sizes) * (_WIDTH - 2 * _AIR)
    y = _HEIGHT - _AIR - _share(values, among) * (_HEIGHT - 2 * _AIR)
    points = " ".join(f"{at:.1f},{high:.1f}" for at, high in zip(x, y, strict=True))
    parts = [f'<polyline points="{points}" fill="none" stroke="{BLUE}" stroke-width="2"/>']
    if reference is not None:
        level = _HEIGHT - _AIR - float(_share(np.log(np.array([reference])), among)[0]) * (_HEIGHT - 2 * _AIR)
        dashed = f'stroke="{GREY}" stroke-width="1.5" stroke-dasharray="4 3"'
        parts.insert(0, f'<line x1="0" x2="{_WIDTH}" y1="{level:.1f}" y2="{level:.1f}" {dashed}/>')
    if chosen is not None and chosen in line:
        at = list(line).index(chosen)
        parts.append(f'<circle cx="{x[at]:.1f}" cy="{y[at]:.1f}" r="4" fill="none" stroke="{BLUE}" stroke-width="2"/>')
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'


def _share(values: Floats, among: Floats) -> Floats:
    return np.asarray((values - among.min()) / ((among.max() - among.min()) or 1.0), np.float64)


def in_words(line: Line, name: str, arms: Sequence[str]) -> str:
    """`on, times as fast as off over ubatches of 64 to 512 tokens: 0.82 to 1.17; dashed: 1.`"""
    over = f"over ubatches of {min(line):,} to {max(line):,} tokens"
    ends = [line[min(line)], line[max(line)]]
    if len(arms) == 1:
        first, last = (format_value(end, FIGURES[name].unit) for end in ends)
        return f"{FIGURES[name].headline} {over}: {first} to {last}."
    what = "times as fast as" if name in JUDGED else "times as much as"
    return f"{arms[-1]}, {what} {arms[0]} {over}: {' to '.join(map(format_factor, ends))}; dashed: 1."
