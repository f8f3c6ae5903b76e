"""Which passes an export shows: those named, else one typical pass of each arm."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from executor.errors import HprofError
from profiler.capture import Capture
from profiler.report.cells import CELL_KEYS

ALL: Final = "all"
_RANGE: Final = re.compile(r"^(\d{1,9})(?:-(\d{1,9}))?$")


def chosen_passes(capture: Capture, text: str | None) -> list[int] | None:
    """Pass ids for `--passes TEXT` ("3", "0,4-6", "all"), or the typical ones; null: the whole capture at once.

    Raises HprofError for numbers that the capture does not have.
    """
    passes = capture.passes
    known = passes["pass_id"].tolist()
    if text is not None and text.strip() != ALL:
        return _named(text, known, capture.path)
    if not known:
        return None
    if text is not None:
        return known
    # other tools record one clock for everything; only where files were put together do arms stand apart
    has_arms = passes["arm"].nunique() > 1
    return typical_passes(passes) if has_arms or capture.manifest.source == "hprof" else None


def typical_passes(passes: pd.DataFrame) -> list[int]:
    """One pass an arm, all of the cell that most arms ran: the one of median length (the earlier of two)."""
    measured = passes[~passes["warmup"].fillna(False).astype(bool)]
    if measured.empty:
        measured = passes
    cells = [rows for _, rows in measured.groupby(CELL_KEYS, dropna=False, sort=False)]
    cell = max(cells, key=lambda rows: int(rows["arm"].nunique()))
    return [_of_median_length(rows) for _, rows in cell.groupby("arm", sort=False)]


def _of_median_length(rows: pd.DataFrame) -> int:
    length = (rows["t_end"] - rows["t_start"]).to_numpy(dtype=float, na_value=np.inf)
    order = np.argsort(length, kind="stable")
    return int(rows["pass_id"].to_numpy()[order[(len(order) - 1) // 2]])


def _named(text: str, known: Sequence[int], path: str) -> list[int]:
    wanted: list[int] = []
    for part in text.split(","):
        match = _RANGE.match(part.strip())
        if match is None:
            raise HprofError(f"--passes {text!r} is no list of pass numbers; write for example 0,4-6, or all.")
        first, last = int(match[1]), int(match[2] or match[1])
        found = [number for number in known if first <= number <= last]
        if not found:
            raise HprofError(f"{path} has no pass {part.strip()}; it has {_spelled(known)}.")
        wanted += found
    return list(dict.fromkeys(wanted))


def _spelled(known: Sequence[int]) -> str:
    return f"{len(known)} passes, {min(known)} to {max(known)}" if known else "no passes"
