"""C against T, layer by layer: who bounds whom."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.figures.style import styled
from dashboard.palette import DIVERGING, GREY, SPENT

_MS: Final = 1e6
_FEW: Final = 12  # so many numbers fit side by side on a phone
_PATTERN: Final = {"size": 6, "solidity": 0.25, "fillmode": "overlay", "fgcolor": "white"}
_T_BAR: Final = 0.1875  # the middle of the second of two bars that share three quarters of a layer's place


def layer_figure(rows: pd.DataFrame) -> go.Figure:
    """Bars of C and T for each layer, T split into hidden and exposed; a mark over layers that are copy-bound.

    rows: `profiler.metrics.typical.typical_layers`.
    """
    figure = go.Figure()
    layer = rows["layer"].to_numpy()
    figure.add_bar(
        x=layer, y=rows["compute_ns"] / _MS, name="C: compute", marker={"color": SPENT["compute"]}, offsetgroup="C",
        hovertemplate="layer %{x}: C %{y:,.3f} ms<extra></extra>",
    )  # fmt: skip
    for part, pattern, base in (("hidden", ".", None), ("exposed", "/", rows["hidden_ns"] / _MS)):
        figure.add_bar(
            x=layer,
            y=rows[f"{part}_ns"] / _MS,
            base=base,
            name=f"T: {part} copy",
            offsetgroup="T",
            marker={"color": SPENT[part], "pattern": _PATTERN | {"shape": pattern}},
            hovertemplate=f"layer %{{x}}: T: {part} copy %{{y:,.3f}} ms<extra></extra>",
        )
    _mark_bound(figure, rows)
    styled(figure, height=380, barmode="group", bargap=0.25)
    figure.update_xaxes(title="layer", showgrid=False, dtick=1 if len(rows) <= _FEW else None)
    figure.update_yaxes(title="ms", rangemode="tozero")
    return figure


def _mark_bound(figure: go.Figure, rows: pd.DataFrame) -> None:
    """A triangle over the copy of each layer that is copy-bound."""
    bound = rows[rows["copy_bound"]]
    clear = 0.025 * float(np.nanmax(rows["copy_ns"].to_numpy(float), initial=0.0)) / _MS  # of the bar's top
    figure.add_scatter(
        x=bound["layer"] + _T_BAR,
        y=bound["copy_ns"] / _MS + clear,
        mode="markers",
        name="copy-bound: T > C",
        marker={"symbol": "triangle-down", "size": 10, "color": GREY},
        hoverinfo="skip",
    )


def margin_figure(margin: pd.DataFrame) -> go.Figure:
    """Layer x ubatch: how much time C + T leaves over the next layer's whole copy T'; positive means prefetch pays.

    margin: index ubatch, columns layer, values in ns.
    """
    values = margin.to_numpy(float) / _MS
    largest = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 1.0
    figure = go.Figure(
        go.Heatmap(
            z=values.astype(np.float32),
            x=margin.columns.to_numpy(),
            y=[str(int(number)) for number in margin.index],
            zmid=0,
            zmin=-largest,
            zmax=largest,
            colorscale=DIVERGING,
            colorbar={"title": "ms", "thickness": 10},
            xgap=1,
            ygap=1,
            hovertemplate="ubatch %{y}, layer %{x}: C + T - T' = %{z:,.3f} ms<extra></extra>",
        )
    )
    styled(figure, height=int(np.clip(120 + 26 * len(margin), 200, 640)), legend=False)
    figure.update_xaxes(title="layer", showgrid=False, dtick=1 if len(margin.columns) <= _FEW else None)
    figure.update_yaxes(title="ubatch", type="category", autorange="reversed", showgrid=False)
    return figure
