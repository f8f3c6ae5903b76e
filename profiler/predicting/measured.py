"""What a capture measured, cell by cell, to hold predictions against: figures, and time by kind of step."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

import numpy as np
import pandas as pd

from profiler.capture import Capture
from profiler.metrics.passes import CELL_KEYS, measured_passes
from profiler.planning.request import GridPoint
from profiler.predicting.predictor import Prediction
from profiler.predicting.samples import times_of_steps

ArmCell = tuple[str, GridPoint]
"""An arm's label, and the cell that it ran in."""
_KEYS: Final = ["arm", *CELL_KEYS]
_FIGURES: Final = ("ttft_ns", "prefill_ns", "decode_ns", "bytes_h2d")


@dataclass(frozen=True, slots=True)
class MeasuredCell:
    """An arm's measured passes in a cell: medians, None where nothing of the kind was measured.

    `busy_prefill` and `busy_decode` are the mean times of a pass by kind of step, in ns, as predictions name them.
    """

    ttft_ns: float | None
    prefill_ns: float | None
    decode_ns: float | None
    bytes_h2d: float | None
    n: int
    busy_prefill: Mapping[str, float] = field(default_factory=dict, repr=False)
    busy_decode: Mapping[str, float] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Miss:
    """A prediction beside what was measured. Errors are shares of what was measured; None: not both are known."""

    prediction: Prediction
    measured: MeasuredCell
    is_fitted: bool

    def error(self, figure: str) -> float | None:
        """How far `ttft_ns`, `prefill_ns`, `decode_ns` or `bytes_h2d` is off."""
        found = relative(getattr(self.prediction, figure), getattr(self.measured, figure))
        return found[0] if found else None

    def to_blame(self) -> tuple[str, float] | None:
        """The kind of step of the prompt that is furthest off, and by which share of the prompt's time."""
        predicted, measured = self.prediction.busy_prefill, self.measured.busy_prefill
        if not measured or not self.measured.prefill_ns:
            return None
        off = {name: predicted.get(name, 0.0) - ns for name, ns in measured.items()}
        worst = max(off, key=lambda name: abs(off[name]))
        return worst, off[worst] / self.measured.prefill_ns


def misses_of(
    predictions: Sequence[Prediction], capture: Capture, fitted: Collection[GridPoint], *, with_steps: bool = False
) -> list[Miss]:
    """Each prediction of a cell that the capture measured, beside it."""
    measured = measured_cells(capture, with_steps=with_steps)
    found = ((one, measured.get((one.label, one.cell))) for one in predictions)
    return [Miss(one, seen, one.cell in fitted) for one, seen in found if seen is not None]


def told_passes(capture: Capture) -> pd.DataFrame:
    """The measured passes that say which pass they are and of which cell: what predictions can be held against."""
    return measured_passes(capture.passes).dropna(subset=["pass_id", *CELL_KEYS])


def measured_cells(capture: Capture, *, with_steps: bool = False) -> dict[ArmCell, MeasuredCell]:
    """By arm and cell, the capture's measured passes; `with_steps`: with their time by kind of step."""
    passes = told_passes(capture)
    busy = _busy(capture, passes) if with_steps else {}
    of_cell = passes[[*_KEYS, *_FIGURES]].astype(dict.fromkeys(_FIGURES, float)).groupby(_KEYS, observed=True)
    medians, counts = of_cell[list(_FIGURES)].median(), of_cell.size()
    found = {}
    for (group, *values), n in zip(medians.itertuples(name=None), counts, strict=True):
        arm, *sizes = cast("tuple[str, int, int, int, int]", group)
        key = arm, grid_point(sizes)
        ttft, prefill, decode, n_bytes = (None if math.isnan(value) else value for value in values)
        found[key] = MeasuredCell(
            ttft_ns=ttft,
            prefill_ns=prefill,
            decode_ns=decode,
            bytes_h2d=n_bytes,
            n=n,
            busy_prefill=busy.get((key, "prefill"), {}),
            busy_decode=busy.get((key, "decode"), {}),
        )
    return found


def grid_point(sizes: Iterable[float]) -> GridPoint:
    """The cell of these sizes, in the order of CELL_KEYS."""
    return GridPoint(*map(int, sizes))


def relative(predicted: float | None, measured: float | None) -> list[float]:
    """How far a prediction is off, as a share of what was measured; nothing where one of them is not known."""
    return [predicted / measured - 1] if predicted is not None and measured else []


def _busy(capture: Capture, passes: pd.DataFrame) -> dict[tuple[ArmCell, str], dict[str, float]]:
    """By arm, cell and phase: mean time of a pass by kind of step."""
    steps = times_of_steps(capture, [int(one) for one in passes["pass_id"]])
    of_weights = (steps["kind"] == "h2d") & steps["tensor"].notna()
    of_host = steps["kind"] == "cpu_compute"
    named = np.select([of_weights, of_host], ["copies of weights", steps["name"] + " on host"], steps["name"])
    ns = steps["ns"].groupby([steps["pass_id"], steps["phase"], named]).sum()
    frame = ns.rename_axis(["pass_id", "phase", "name"]).rename("ns").reset_index()
    frame = frame.merge(passes[["pass_id", *_KEYS]], on="pass_id")
    found: dict[tuple[ArmCell, str], dict[str, float]] = {}
    means = frame.groupby([*_KEYS, "phase", "name"], as_index=False)["ns"].mean()
    for arm, *sizes, phase, step, ns in means.itertuples(index=False, name=None):
        found.setdefault(((arm, grid_point(sizes)), phase), {})[step] = ns
    return found
