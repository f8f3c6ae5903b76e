"""A whole answer: predictions with their intervals, what they rest on, and how far they are from what was measured.

Its JSON has the report's keys where it has the same figures (`docs/predicting.md`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from profiler.planning.request import GridPoint
from profiler.predicting.calibrate import interval
from profiler.predicting.measured import Miss
from profiler.predicting.predictor import Prediction

Figure = dict[str, float | int | None]


@dataclass(frozen=True, slots=True)
class Forecast:
    """`spread` is by figure ("ttft", "decode") the relative half-width of an interval; None: nothing says it."""

    model: str
    baseline: str
    predictions: Sequence[Prediction]
    spread: Mapping[str, float | None]
    fitted_to: Sequence[str] = ()
    misses: Sequence[Miss] = ()
    notes: Sequence[str] = ()

    def by_cell(self) -> Iterator[tuple[GridPoint, list[Prediction]]]:
        """Each cell with its arms, in the order in which they were asked for."""
        cells: dict[GridPoint, list[Prediction]] = {}
        for one in self.predictions:
            cells.setdefault(one.cell, []).append(one)
        yield from cells.items()

    def ttft(self, one: Prediction) -> Figure | None:
        """Time to first token in ns with its interval."""
        return _figure(one.ttft_ns, self.spread.get("ttft"))

    def prefill_tokens_per_s(self, one: Prediction) -> Figure | None:
        rate = one.cell.n_prompt / one.prefill_ns * 1e9 if one.prefill_ns else None
        return _figure(rate, self.spread.get("ttft"))

    def decode_tokens_per_s(self, one: Prediction) -> Figure | None:
        rate = one.cell.n_decoded / one.decode_ns * 1e9 if one.decode_ns else None
        return _figure(rate, self.spread.get("decode"))

    def errors(self, figure: str, *, fitted: bool) -> dict[str, float] | None:
        """Median and 90th percentile of the errors' sizes, of cells that were fitted to or not; None without any."""
        found = [abs(error) for miss in self.misses if miss.is_fitted == fitted for error in _known(miss, figure)]
        return {"median": float(np.median(found)), "p90": float(np.quantile(found, 0.9))} if found else None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "schema": 1,
            "source": "predicted",
            "model": self.model,
            "baseline": self.baseline,
            "fitted_to": list(self.fitted_to),
            "notes": list(self.notes),
            "cells": [self._cell(cell, arms) for cell, arms in self.by_cell()],
            **({"against": self._against()} if self.misses else {}),
        }

    def _cell(self, cell: GridPoint, arms: Sequence[Prediction]) -> dict[str, Any]:
        base = next((one for one in arms if one.label == self.baseline), None)
        return {
            **_axes(cell),
            "arms": {one.label: self._arm(one) for one in arms},
            "against_baseline": {
                one.label: {"ttft_ns": {"ratio": one.ttft_ns / base.ttft_ns}}
                for one in arms
                if base is not None and one is not base and one.ttft_ns and base.ttft_ns
            },
        }

    def _arm(self, one: Prediction) -> dict[str, Any]:
        return {
            "ttft_ns": self.ttft(one),
            "prefill_tokens_per_s": self.prefill_tokens_per_s(one),
            "decode_tokens_per_s": self.decode_tokens_per_s(one),
            "bytes_h2d": _figure(one.bytes_h2d, 0.0),
            **{f"{name}_bytes": value for name, value in one.vram.items()},
            "in_fitted_range": one.in_range,
            "prefill": {"busy_ns": dict(one.busy_prefill)},
            "decode": {"busy_ns": dict(one.busy_decode)},
        }

    def _against(self) -> dict[str, Any]:
        names = {"ttft": "ttft_ns", "prefill": "prefill_ns", "decode": "decode_ns", "bytes": "bytes_h2d"}
        return {
            "not_fitted": {name: self.errors(figure, fitted=False) for name, figure in names.items()},
            "fitted": {name: self.errors(figure, fitted=True) for name, figure in names.items()},
            "cells": [
                {
                    **_axes(miss.prediction.cell),
                    "arm": miss.prediction.label,
                    "fitted": miss.is_fitted,
                    **{name: miss.error(figure) for name, figure in names.items()},
                    "to_blame": None if (blame := miss.to_blame()) is None else {"step": blame[0], "share": blame[1]},
                }
                for miss in self.misses
            ],
        }


def _known(miss: Miss, figure: str) -> Iterator[float]:
    error = miss.error(figure)
    if error is not None:
        yield error


def _figure(value: float | None, spread: float | None) -> Figure | None:
    if value is None:
        return None
    low, high = interval(value, spread)
    return {"median": value, "low": low, "high": high, "n": 0}


def _axes(cell: GridPoint) -> dict[str, int]:
    return {"n_prompt": cell.n_prompt, "n_gen": cell.n_gen, "n_ubatch": cell.n_ubatch, "n_depth": cell.n_depth}
