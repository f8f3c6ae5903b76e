"""Figures that a measured program printed itself (`--metric`, docs/measuring-your-code.md): by name, a value a pass."""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
import pyarrow as pa

from executor.arrays import Floats
from profiler.arithmetic.stats import Better
from profiler.manifest import Manifest
from profiler.metrics.figures import FIGURES, Figure
from profiler.plain_text import printable

_MOST: Final = 64  # names; each is a column of every frame, and the file may be a stranger's
_MAX_NAME: Final = 80
_MAX_SIZE: Final = 1e100


def reading_figures(manifest: Manifest) -> dict[str, Figure]:
    """What the manifest says of the readings, by name; nothing for captures without any."""
    told = manifest.extra.get("readings")
    rules = list(told.items())[:_MOST] if isinstance(told, dict) else []
    return {
        name: Figure(printable(name), "number", "printed by the program", _better(rule))
        for name, rule in rules
        if isinstance(rule, dict) and len(name) <= _MAX_NAME and name not in FIGURES
    }


def reading_columns(passes: pa.Table, names: list[str]) -> dict[str, Floats]:
    """A column a name, a value a row of `passes`; NaN where the program did not print it."""
    columns = {name: np.full(passes.num_rows, np.nan) for name in names}
    for row, readings in enumerate(passes["readings"].to_pylist() if names else []):
        for reading in readings or ():
            if reading["name"] in columns and reading["value"] is not None:
                columns[reading["name"]][row] = reading["value"] if can_be_judged(reading["value"]) else np.nan
    return columns


def can_be_judged(value: float) -> bool:
    """Whether medians and ratios of such numbers are numbers too: finite, and neither too large nor too small."""
    return value == 0 or 1 / _MAX_SIZE <= abs(value) <= _MAX_SIZE


def _better(rule: dict[str, Any]) -> Better | None:
    said = rule.get("better")
    return cast("Better", said) if said in ("lower", "higher") else None
