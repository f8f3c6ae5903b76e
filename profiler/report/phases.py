"""Prefill and decode: which of the two the answer is about, and how arms do in the other one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final

from profiler.arithmetic.stats import Comparison
from profiler.report.cells import Cell, telling_cell
from profiler.report.shown_cells import telling_figure
from profiler.report.verdicts import as_fast, factor_range

DECODE_RATE: Final = "decode_tokens_per_s"
PHASES: Final[Mapping[str, str]] = {"prefill_tokens_per_s": "prefill", DECODE_RATE: "decode"}
"""What a rate is about, in a word."""


def told_phase(cells: Sequence[Cell]) -> str | None:
    """What the telling figure is about, where the other phase was timed as well."""
    timed = {key for key in PHASES for cell in cells if cell.arms[cell.baseline].median(key) is not None}
    return PHASES.get(telling_figure(telling_cell(cells)) or "") if len(timed) > 1 else None


def told_slower(cells: Sequence[Cell], cell: Cell, name: str, phase: str) -> str | None:
    """`in decode it is 0.80 x as fast, slower`: of an arm that was chosen by a phase in this cell; None: it is not.

    Where the phases were timed apart, as llama-bench does, of the cells that timed the other one at this depth: with
    this ubatch, if there are any.
    """
    for figure, other in PHASES.items():
        if other == phase:
            continue
        alike = [one for one in cells if (one.baseline, one.n_depth) == (cell.baseline, cell.n_depth)]
        for among in ([cell], [one for one in alike if one.n_ubatch == cell.n_ubatch], alike):
            if judged := list(_judged(among, figure, name)):
                slower = [as_fast(one.ratio, figure) for one in judged if one.verdict == "slower"]
                if slower:
                    return f"in {other} it is {factor_range(slower)}, slower"
                break
    return None


def with_fastest(cells: Sequence[Cell], figure: str, names: Sequence[str], among: Sequence[str]) -> list[str]:
    """The names, and behind them the arm that is fastest in a figure, where it is none of them and beats the baseline,
    or may: its verdict may still be due.
    """
    speeds = {}
    for name in among:
        found = [one for one in _judged(cells, figure, name) if not (one.is_same_work or one.is_other_work)]
        if any(one.verdict == "faster" or one.n_missing for one in found):
            speeds[name] = fmean(math.log(as_fast(one.ratio, figure)) for one in found)
    fastest = max(speeds, key=lambda name: speeds[name], default=None)
    is_to_add = fastest is not None and speeds[fastest] > 0 and fastest not in names
    return [*names, *([fastest] if fastest is not None and is_to_add else [])]


def _judged(cells: Sequence[Cell], figure: str, name: str) -> Iterator[Comparison]:
    """How the arm compares with the baseline in a figure, in each cell that has it of both."""
    for cell in cells:
        if (found := cell.against_baseline.get(name, {}).get(figure)) is not None:
            yield found
