"""Which cells a capture has and which arms ran them, from its passes alone: what a list of cells needs, at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from profiler.manifest import Arm
from profiler.report.cells import CELL_KEYS
from profiler.report.data import Cell


@dataclass(frozen=True, slots=True)
class CellSizes:
    """One cell: its sizes (null: the source does not say) and its arms in the manifest's order."""

    n_prompt: int | None
    n_gen: int | None
    n_ubatch: int | None
    n_depth: int | None
    arms: tuple[str, ...]

    def names(self, cell: Cell) -> bool:
        """Whether this is that cell of a report."""
        return all(getattr(self, key) == getattr(cell, key) for key in CELL_KEYS)

    def rows_in(self, passes: pd.DataFrame) -> pd.Series[bool]:
        """Which rows of the `passes` table are measured passes of this cell."""
        mine = ~passes["warmup"].fillna(False).astype(bool) & passes["arm"].notna()
        for key in CELL_KEYS:
            value = getattr(self, key)
            mine &= passes[key].isna() if value is None else passes[key] == value
        return mine


def cell_sizes(passes: pd.DataFrame, arms: Sequence[Arm]) -> list[CellSizes]:
    """Every cell with measured passes, in the order of the report's."""
    order = {arm.name: position for position, arm in enumerate(arms)}
    measured = passes[~passes["warmup"].fillna(False).astype(bool) & passes["arm"].notna()]
    found = []
    for _, rows in measured.groupby(CELL_KEYS, dropna=False, sort=True):
        names = sorted(rows["arm"].unique(), key=lambda name: order.get(name, len(order)))
        sizes = {key: rows[key].iloc[0] for key in CELL_KEYS}
        known = {key: None if pd.isna(size) else int(size) for key, size in sizes.items()}
        found.append(CellSizes(**known, arms=tuple(names)))
    return found


def telling_sizes(cells: Sequence[CellSizes]) -> CellSizes:
    """The cell to begin with: most arms compared, then most tokens; as `profiler.report.summary.telling_cell`."""
    return max(cells, key=lambda cell: (len(cell.arms), cell.n_prompt or 0, cell.n_ubatch or 0))
