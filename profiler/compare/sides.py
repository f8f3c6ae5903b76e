"""The two sides of a comparison, `traces/run#on,ub=512` each: opened, and their cells and arms paired."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from executor.arrays import Floats, Int64
from executor.errors import HprofError
from executor.units import listed
from profiler.capture import Capture
from profiler.metrics import CaptureTables, Figure, Scope, load_tables, pass_figures, reading_columns, reading_figures
from profiler.metrics.passes import CellKey, by_cell, measured_passes, take_sizes, varied_keys
from profiler.report.build import is_routing_given
from profiler.report.pairs import pair_keys
from profiler.report.sameness import WorkDone

_MOST_NAMED: Final = 4  # cells or arms of a side

GroupKey = tuple[CellKey, str]


@dataclass(frozen=True)
class OpenedSide:
    """A side, opened: its measured passes and their figures."""

    spec: str
    capture: Capture
    arm: str | None  # the one that was asked for
    wanted: dict[str, int]  # column of CELL_KEYS -> value

    @cached_property
    def tables(self) -> CaptureTables:
        """The capture's tables, read once."""
        return load_tables(self.capture)

    @cached_property
    def readings(self) -> dict[str, Figure]:
        """What the measured programs printed themselves, by name."""
        return reading_figures(self.capture.manifest)

    @cached_property
    def frames(self) -> dict[Scope, pd.DataFrame]:
        """`pass_figures` of the tables."""
        return pass_figures(*self.tables)

    @cached_property
    def work_done(self) -> WorkDone:
        """Knows what passes did, which arms may have done alike by design."""
        return WorkDone(self.tables.ubatches, self.frames, self.capture.manifest.arms)

    @property
    def tokens_route(self) -> bool:
        """Whether other tokens mean other experts, so other work."""
        return self.tables.experts.num_rows > 0 and not is_routing_given(self.capture.manifest)

    @cached_property
    def figures(self) -> pd.DataFrame:
        """One row a pass (index: pass_id), a column a figure or reading."""
        frame = self.frames["pass"]
        printed = pd.DataFrame(reading_columns(self.tables.passes, list(self.readings)), frame.index)
        return pd.concat([frame, printed], axis=1)

    @cached_property
    def repetitions(self) -> dict[GroupKey, tuple[list[tuple[float, float]], Int64]]:
        """Of each group the `pair_keys` of its passes, and their rows among the `figures`."""
        index = self.figures.index
        return {
            key: (pair_keys(rows), index.get_indexer(pd.Index(rows["pass_id"]))) for key, rows in self.groups.items()
        }

    @cached_property
    def columns(self) -> dict[str, Floats]:
        """The `figures` as arrays."""
        return {str(name): self.figures[name].to_numpy(np.float64) for name in self.figures}

    @cached_property
    def passes(self) -> pd.DataFrame:
        """The measured passes that were asked for; HprofError where there are none of that description."""
        passes: pd.DataFrame = self.tables.passes.to_pandas()
        measured = measured_passes(passes)
        found = measured
        for column, value in self.wanted.items():
            found = found[found[column] == value]
        if self.arm is not None:
            found = found[found["arm"] == self.arm]
        if found.empty and (self.arm is not None or self.wanted):
            arms = ", ".join(map(repr, measured["arm"].unique())) or "none"
            named = dict.fromkeys(cell.named(list(self.wanted)) for cell, _ in by_cell(measured))
            sizes = ", ".join(filter(None, named))
            there = f"; it has {sizes}" if sizes else ""
            raise HprofError(f"{self.spec} names no measured pass of the capture; its arms are {arms}{there}.")
        return found

    @cached_property
    def groups(self) -> dict[tuple[CellKey, str], pd.DataFrame]:
        """The passes by cell and arm."""
        return {
            (cell, str(arm)): rows for cell, of_cell in by_cell(self.passes) for arm, rows in of_cell.groupby("arm")
        }


def open_side(spec: str) -> OpenedSide:
    """Open `CAPTURE` or `CAPTURE#PART`, where PART is an arm's name and cell sizes p=, n=, ub=, d= in any order.

    A folder's own name may hold a `#`, unless what comes before that is a folder too.
    """
    path, part = _split(spec)
    sizes, arm = take_sizes(part)
    return OpenedSide(spec, Capture.open(path), arm or None, sizes)


def _split(spec: str) -> tuple[str, str]:
    """Capture and part, cut at the first `#` that leaves a folder before it; at the first where none does."""
    cuts = [*(at for at, letter in enumerate(spec) if letter == "#"), len(spec)]
    at = next((at for at in cuts if Path(spec[:at]).is_dir()), cuts[0])
    return spec[:at], spec[at + 1 :]


Pairs = list[tuple[GroupKey, GroupKey]]


def matched(a: OpenedSide, b: OpenedSide) -> Pairs:
    """Which groups of A and B are held against each other: the same cell and arm, or the only ones there are.

    Where no cell is shared, ubatch sizes may differ, if each side has one size alone.

    Raises HprofError where nothing matches.
    """
    left, right = list(a.groups), list(b.groups)
    if not left and not right:
        return []
    if not left or not right:
        raise HprofError(
            f"{(b if left else a).spec} has no measured pass to hold against the other side's; "
            "`hprof import --arm NAME=FILE` makes one pass of a trace without any."
        )
    arm_of = _arm_pairs(left, right)
    same_cell = [(x, (x[0], arm_of[x[1]])) for x in left if x[1] in arm_of and (x[0], arm_of[x[1]]) in right]
    if same_cell:
        return same_cell
    cells_a, cells_b = ({key[0] for key in keys} for keys in (left, right))
    if arm_of and len(cells_a) == len(cells_b) == 1:
        (cell_b,) = cells_b
        return [(x, (cell_b, arm_of[x[1]])) for x in left if x[1] in arm_of and (cell_b, arm_of[x[1]]) in right]
    if arm_of and (by_size := _same_but_ubatch(cells_a, cells_b)):
        other = [(x, (by_size.get(x[0]), arm_of.get(x[1]))) for x in left]
        return [(x, (y[0], y[1])) for x, y in other if y[0] is not None and y[1] is not None and y in right]
    raise HprofError(_nothing_shared(a, b))


def _same_but_ubatch(a: set[CellKey], b: set[CellKey]) -> dict[CellKey, CellKey]:
    """B's cell for each of A's that is the same but for the ubatch; empty where a side has several ubatch sizes."""
    if any(len({cell.n_ubatch for cell in cells}) > 1 for cells in (a, b)):
        return {}
    of_b = {replace(cell, n_ubatch=None): cell for cell in b}
    return {cell: of_b[key] for cell in a if (key := replace(cell, n_ubatch=None)) in of_b}


def _arm_pairs(left: list[GroupKey], right: list[GroupKey]) -> dict[str, str]:
    arms_a, arms_b = (list(dict.fromkeys(arm for _, arm in keys)) for keys in (left, right))
    if len(arms_a) == len(arms_b) == 1:
        return {arms_a[0]: arms_b[0]}
    return {arm: arm for arm in arms_a if arm in arms_b}


def _nothing_shared(a: OpenedSide, b: OpenedSide) -> str:
    """What each side has, and the next step."""
    keys = varied_keys([cell for side in (a, b) for cell, _ in side.groups])
    told = [f"{name} has {_cells_told(side, keys)}" for name, side in (("A", a), ("B", b))]
    named = " ".join(_first_part(side, keys) for side in (a, b))
    return (
        f"{a.spec} and {b.spec} share no cell and arm: {'; '.join(told)}; run the same in both, or see one beside "
        f"the other, such as hprof compare {named}."
    )


def _cells_told(side: OpenedSide, keys: Sequence[str]) -> str:
    """`ub=16,p=64 and ub=32,p=64 of off and on`."""
    cells = list(filter(None, dict.fromkeys(cell.named(keys) for cell, _ in side.groups)))
    arms = list(dict.fromkeys(arm for _, arm in side.groups))
    told = [_at_most(names) for names in (cells, arms) if names]
    return " of ".join(told)


def _at_most(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return listed([*names[:_MOST_NAMED], *([f"{more} more"] if more > 0 else [])])


def _first_part(side: OpenedSide, keys: Sequence[str]) -> str:
    """The first cell and arm of a side as it is typed."""
    cell, arm = next(iter(side.groups))
    return shlex.quote(f"{_split(side.spec)[0]}#{','.join(filter(None, [arm, cell.named(keys)]))}")
