"""A capture's own workload under other settings, as rows to draw: predicted with intervals, and measured beside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import pandas as pd

from profiler.planning.plan import RunPlan
from profiler.planning.request import GridPoint
from profiler.predicting.calibrate import Calibration, interval
from profiler.predicting.costs import Costs
from profiler.predicting.predictor import Prediction, predict

WhatIfFigure = Literal["ttft_ns", "prefill_tokens_per_s", "decode_tokens_per_s"]
WHAT_IF_UBATCHES: Final = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Predictions of a plan's cells, and the capture whose measured points lie beside them.

    `spread`: the relative half-widths of intervals; empty where rates alone say what steps take.
    """

    plan: RunPlan
    predictions: tuple[Prediction, ...]
    spread: dict[str, float | None]

    @property
    def n_gen(self) -> int:
        """The tokens that every cell generates."""
        return max(cell.n_gen for cell in self.plan.request.cells)

    def rows(self, figure: WhatIfFigure) -> pd.DataFrame:
        """arm, n_ubatch, median, low, high, in_range: one row a prediction that has the figure."""
        spread = self.spread.get("decode" if figure.startswith("decode") else "ttft")
        found = []
        for one in self.predictions:
            value = _value(figure, one.cell, one.ttft_ns, one.prefill_ns, one.decode_ns)
            if value is not None:
                low, high = interval(value, spread)
                found.append((one.label, one.cell.n_ubatch, value, low, high, one.in_range))
        return pd.DataFrame(found, columns=["arm", "n_ubatch", "median", "low", "high", "in_range"])


def what_if(plan: RunPlan, costs: Costs, calibration: Calibration | None) -> WhatIf:
    """Predict a plan; `calibration` where the costs are those of a capture."""
    use = None if calibration is None else calibration.use
    spread = {} if calibration is None else calibration.spread
    return WhatIf(plan, tuple(predict(plan, costs, use)), spread)


def measured_rows(told: pd.DataFrame, n_prompt: int, n_gen: int, n_depth: int) -> pd.DataFrame:
    """arm, n_ubatch, value: what the report says of this prompt, depth and number of tokens. No ubatch is larger than
    its prompt: of settings that make the prompt one ubatch the smallest stays.

    told: a figure's medians, by the names of the report's sizes (`profiler.report.sweep.sweep_figures`).
    """
    is_mine = (told["n_prompt"] == n_prompt) & (told["n_gen"] == n_gen) & (told["n_depth"] == n_depth)
    mine = told[is_mine].dropna(subset=["n_ubatch"]).sort_values("n_ubatch", kind="stable")
    if n_prompt:
        mine = mine.assign(n_ubatch=mine["n_ubatch"].clip(upper=n_prompt))
    found: pd.DataFrame = mine.drop_duplicates(["arm", "n_ubatch"]).rename(columns={"median": "value"})
    return found[["arm", "n_ubatch", "value"]].astype({"n_ubatch": int}).reset_index(drop=True)


def beside_measured(predicted: pd.DataFrame, measured: pd.DataFrame, n_ubatch: int) -> pd.DataFrame:
    """arm, predicted, low, high, measured, off by: of one ubatch. `off by` is a share of what was measured; NaN where
    nothing was.

    predicted: `WhatIf.rows`; measured: `measured_rows`.
    """
    here = predicted.loc[predicted["n_ubatch"] == n_ubatch, ["arm", "median", "low", "high"]]
    found = measured[measured["n_ubatch"] == n_ubatch].set_index("arm")["value"].astype(float)
    told = here.rename(columns={"median": "predicted"}).assign(measured=here["arm"].map(found).astype(float))
    return told.assign(**{"off by": told["predicted"] / told["measured"] - 1}).reset_index(drop=True)


def _value(
    figure: WhatIfFigure,
    cell: GridPoint,
    ttft_ns: float | None,
    prefill_ns: float | None,
    decode_ns: float | None,
) -> float | None:
    if figure == "ttft_ns":
        return ttft_ns
    if figure == "prefill_tokens_per_s":
        return cell.n_prompt / prefill_ns * 1e9 if prefill_ns else None
    return cell.n_decoded / decode_ns * 1e9 if decode_ns and cell.n_decoded else None
