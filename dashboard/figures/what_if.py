"""What if: predicted lines with their intervals as bands, and measured points on them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.figures.size_axes import (
    SCALES,
    SweepArms,
    arm_band,
    arm_line,
    axis_title,
    label_ends,
    log_axis,
    size_ticks,
)
from dashboard.figures.style import GREY, arm_style, styled
from dashboard.text import for_plotly


def what_if_figure(
    predicted: pd.DataFrame, measured: pd.DataFrame, figure_name: str, arms: SweepArms, chosen: int
) -> go.Figure:
    """Predictions over the ubatch, an arm a line; hollow markers lie outside what was fitted, crosses were measured. A
    line stands at the chosen ubatch.
    """
    figure = go.Figure()
    scale = SCALES.get(figure_name, 1.0)
    by_arm = {arm: predicted[predicted["arm"] == arm].sort_values("n_ubatch") for arm in arms.names}
    by_arm = {arm: rows for arm, rows in by_arm.items() if len(rows)}
    for arm in sorted(by_arm, key=arms.stands_out):  # those on show last, over the others
        rows, style = by_arm[arm], arm_style(arm, arms.names)
        if rows["low"].notna().all():
            figure.add_scatter(**arm_band(rows["n_ubatch"], rows["low"] * scale, rows["high"] * scale, arm, arms))
        line = arm_line(rows["n_ubatch"].to_numpy(), rows["median"].to_numpy() * scale, arm, arms)
        line["marker"]["symbol"] = [style["marker"] + ("" if inside else "-open") for inside in rows["in_range"]]
        figure.add_scatter(**line)
        points = measured[measured["arm"] == arm]
        if len(points):
            figure.add_scatter(
                x=points["n_ubatch"].to_numpy(),
                y=points["value"].to_numpy() * scale,
                name=f"{for_plotly(arm)}, measured",
                mode="markers",
                opacity=line["opacity"],
                marker={"symbol": "x-thin", "size": 11, "line": {"color": style["colour"], "width": 3}},
                hovertemplate=f"{for_plotly(arm)} measured: %{{y:,.4g}}<extra></extra>",
            )
    styled(figure, height=400, legend=False)
    figure.add_vline(x=chosen, line={"color": GREY, "width": 1.5, "dash": "dot"})
    figure.update_xaxes(title="ubatch, tokens", **size_ticks(predicted["n_ubatch"]))
    known = np.concatenate([predicted[name].dropna().to_numpy(float) for name in ("median", "low", "high")])
    log_axis(figure, np.concatenate([known, measured["value"].to_numpy(float)]) * scale, axis_title(figure_name))
    label_ends(figure, by_arm, "median", scale, arms)
    return figure
