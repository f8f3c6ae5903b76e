"""Every figure of the cell, as a table."""

from __future__ import annotations

import pandas as pd

from dashboard.choice import Choice
from dashboard.overview.cards import found_of
from dashboard.overview.words import bounds, interval
from profiler.arithmetic.stats import Comparison, Estimate
from profiler.metrics import FIGURES
from profiler.metrics.names import Figure


def figure_table(choice: Choice) -> pd.DataFrame:
    """One row a figure that an arm has: A, B, ratio, interval, verdict, meaning."""
    cell, rows = choice.cell, []
    for name, figure in FIGURES.items():
        found = found_of(choice, cell, name)
        if any(found):
            compared = cell.against_baseline.get(choice.b or "", {}).get(name)
            rows.append(_row(choice, figure, found, compared))
    return pd.DataFrame(rows)


def _row(choice: Choice, figure: Figure, found: list[Estimate | None], compared: Comparison | None) -> dict[str, str]:
    columns = [f"{letter} {arm}" for letter, arm in zip("AB", choice.arms, strict=False)]
    row = {"figure": figure.label}
    row |= {column: interval(one, figure.unit) for column, one in zip(columns, found, strict=True)}
    if choice.b is not None:
        row["B / A"] = f"{compared.ratio:.3f}" if compared else ""
        row["interval"] = bounds(compared, "{low:.3f} to {high:.3f}")
        row["verdict"] = compared.verdict if compared else ""
    return row | {"meaning": figure.meaning}
