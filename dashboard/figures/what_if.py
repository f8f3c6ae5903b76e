"""What if: predicted lines with their intervals as bands, and measured points on them."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from dashboard.figures.style import arm_style, styled
from dashboard.figures.sweep import SCALES, axis_title
from dashboard.text import for_plotly


def what_if_figure(predicted: pd.DataFrame, measured: pd.DataFrame, figure_name: str, arms: Sequence[str]) -> go.Figure:
    """Predictions over the ubatch, an arm a line; hollow markers lie outside what was fitted, crosses were measured."""
    figure = go.Figure()
    scale = SCALES.get(figure_name, 1.0)
    for arm in [arm for arm in arms if (predicted["arm"] == arm).any()]:
        rows = predicted[predicted["arm"] == arm].sort_values("n_ubatch")
        style = arm_style(arm, arms)
        if rows["low"].notna().all():
            figure.add_scatter(**_band(rows, scale, style["colour"]))
        open_marker = [style["marker"] + ("" if inside else "-open") for inside in rows["in_range"]]
        figure.add_scatter(
            x=rows["n_ubatch"].to_numpy(),
            y=rows["median"].to_numpy() * scale,
            name=for_plotly(arm),
            mode="lines+markers",
            line={"color": style["colour"], "dash": style["dash"], "width": 2.5},
            marker={"symbol": open_marker, "size": 9},
            hovertemplate=f"{for_plotly(arm)}: %{{y:,.4g}}<extra></extra>",
        )
        points = measured[measured["arm"] == arm]
        if len(points):
            figure.add_scatter(
                x=points["n_ubatch"].to_numpy(),
                y=points["value"].to_numpy() * scale,
                name=f"{for_plotly(arm)}, measured",
                mode="markers",
                marker={"symbol": "x-thin", "size": 11, "line": {"color": style["colour"], "width": 3}},
                hovertemplate=f"{for_plotly(arm)} measured: %{{y:,.4g}}<extra></extra>",
            )
    styled(figure, height=430)
    figure.update_xaxes(title="ubatch, tokens", type="log", dtick="D2")
    figure.update_yaxes(title=axis_title(figure_name), rangemode="tozero")
    return figure


def _band(rows: pd.DataFrame, scale: float, colour: str) -> dict[str, object]:
    x, low, high = (rows[name].to_numpy() for name in ("n_ubatch", "low", "high"))
    return {
        "x": [*x, *x[::-1]],
        "y": [*(high * scale), *(low[::-1] * scale)],
        "fill": "toself",
        "fillcolor": colour,
        "opacity": 0.15,
        "line": {"width": 0},
        "showlegend": False,
        "hoverinfo": "skip",
    }
