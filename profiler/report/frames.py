"""A report's figures as one tidy frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pandas as pd

from profiler.metrics.passes import CELL_KEYS
from profiler.report.cells import Cell

_COLUMNS: Final = [
    *CELL_KEYS,
    *("arm", "phase", "figure", "median", "low", "high", "n"),
    *("baseline", "ratio", "ratio_low", "ratio_high", "verdict"),
]
_NUMBERS: Final = ["median", "low", "high", "ratio", "ratio_low", "ratio_high"]


def report_frame(cells: Sequence[Cell]) -> pd.DataFrame:
    """One row a figure of an arm in a cell and phase; NaN where an interval or a comparison is not known."""
    frame = pd.DataFrame([row for cell in cells for row in _rows(cell)], columns=_COLUMNS)
    frame[_NUMBERS] = frame[_NUMBERS].astype(float)
    return frame


def _rows(cell: Cell) -> Iterator[tuple[object, ...]]:
    for name, arm in cell.arms.items():
        for phase, figures in arm.figures.items():
            for figure, found in figures.items():
                if found is None:
                    continue
                judged = cell.against_baseline.get(name, {}).get(figure) if phase == "pass" else None
                against: tuple[object, ...] = (None,) * 5
                if judged is not None:
                    against = (cell.baseline, judged.ratio, judged.low, judged.high, judged.verdict)
                measured = (found.median, found.low, found.high, found.n)
                yield (*cell.sizes, name, phase, figure, *measured, *against)
