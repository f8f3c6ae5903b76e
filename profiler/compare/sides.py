"""What `hprof compare` is given: a capture, or a part of one: `traces/run#on,ub=512`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pandas as pd

from executor.errors import HprofError
from profiler.capture import Capture
from profiler.compare.data import CellKey
from profiler.metrics import Tables, load_tables, pass_figures
from profiler.report.cells import CELL_KEYS

_COLUMN_OF_FLAG: Final = {"p": "n_prompt", "n": "n_gen", "ub": "n_ubatch", "d": "n_depth"}
# an arm's own name may hold commas and equals signs: only these are taken out of it
_CELL_PART: Final = re.compile(r"(?:^|,)(p|n|ub|d)=(\d{1,9})(?=,|$)")


@dataclass(frozen=True)
class SideData:
    """A side, opened: its measured passes and their figures."""

    spec: str
    capture: Capture
    arm: str | None  # the one that was asked for
    wanted: dict[str, int]  # column of CELL_KEYS -> value

    @cached_property
    def tables(self) -> Tables:
        """The capture's tables, read once."""
        return load_tables(self.capture)

    @cached_property
    def figures(self) -> pd.DataFrame:
        """One row a pass (index: pass_id), a column a figure."""
        return pass_figures(*self.tables)["pass"]

    @cached_property
    def passes(self) -> pd.DataFrame:
        """The measured passes that were asked for; HprofError where there are none of that description."""
        passes: pd.DataFrame = self.tables.passes.to_pandas()
        measured = passes[~passes["warmup"].fillna(False).astype(bool) & passes["arm"].notna()]
        found = measured
        for column, value in self.wanted.items():
            found = found[found[column] == value]
        if self.arm is not None:
            found = found[found["arm"] == self.arm]
        if found.empty and (self.arm is not None or self.wanted):
            arms = ", ".join(map(repr, measured["arm"].unique())) or "none"
            raise HprofError(f"{self.spec} names no measured pass of the capture; its arms are {arms}.")
        return found

    @cached_property
    def groups(self) -> dict[tuple[CellKey, str], pd.DataFrame]:
        """The passes by cell and arm."""
        grouped = self.passes.groupby([*CELL_KEYS, "arm"], dropna=False, sort=True)
        return {(_cell(key[:-1]), str(key[-1])): rows for key, rows in grouped}


def open_side(spec: str) -> SideData:
    """Open `CAPTURE` or `CAPTURE#PART`, where PART is an arm's name and cell sizes p=, n=, ub=, d= in any order.

    A folder's own name may hold a `#`, unless what comes before that is a folder too.
    """
    path, part = _split(spec)
    sizes = {_COLUMN_OF_FLAG[flag]: int(value) for flag, value in _CELL_PART.findall(part)}
    arm = _CELL_PART.sub("", part).strip(",")
    return SideData(spec, Capture.open(path), arm or None, sizes)


def _split(spec: str) -> tuple[str, str]:
    """Capture and part, cut at the first `#` that leaves a folder before it; at the first where none does."""
    cuts = [*(at for at, letter in enumerate(spec) if letter == "#"), len(spec)]
    at = next((at for at in cuts if Path(spec[:at]).is_dir()), cuts[0])
    return spec[:at], spec[at + 1 :]


def _cell(values: Iterable[Any]) -> CellKey:
    return CellKey(*(None if value is None or pd.isna(value) else int(value) for value in values))
