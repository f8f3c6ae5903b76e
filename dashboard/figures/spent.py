"""Where the time went, as stacked bars: one a pass or device, hatched where it was spent on exposed copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pandas as pd
import plotly.graph_objects as go

from dashboard.figures.style import styled
from dashboard.palette import SPENT
from dashboard.text import for_plotly

PART_LABELS: Final = {
    "compute_ns": "compute",
    "hidden_ns": "hidden copy (both at once)",
    "exposed_ns": "exposed copy",
    "other_ns": "other copies",
    "idle_ns": "idle",
}
_PATTERNS: Final = {"hidden_ns": ".", "exposed_ns": "/", "other_ns": "x"}
_MS: Final = 1e6
_LEGEND_HEIGHT: Final = 76  # three lines: it wraps where the page is narrow


def spent_figure(spent: pd.DataFrame, labels: Sequence[str]) -> go.Figure:
    """Stacked horizontal bars; `spent` has a row a bar and the columns of `profiler.metrics.spent.PARTS`."""
    figure = go.Figure()
    for part, text in PART_LABELS.items():
        values = spent[part].to_numpy(float)
        if not (values > 0).any():
            continue
        figure.add_bar(
            y=[for_plotly(label) for label in labels],
            x=values / _MS,
            orientation="h",
            name=text.partition(" (")[0],
            marker={"color": SPENT[part.removesuffix("_ns")], "pattern": _pattern(part), "line": {"width": 0}},
            hovertemplate=f"{text}: %{{x:,.2f}} ms<extra></extra>",
        )
    styled(figure, height=_LEGEND_HEIGHT + 60 + 54 * len(labels), barmode="stack", bargap=0.35)
    # From the top down, so that lines of it on a phone do not run into the bars.
    legend = {"traceorder": "normal", "yref": "container", "y": 1.0, "yanchor": "top"}
    figure.update_layout(legend=legend, margin={"t": _LEGEND_HEIGHT})
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(title="ms", rangemode="tozero")
    return figure


def _pattern(part: str) -> Mapping[str, object] | None:
    shape = _PATTERNS.get(part)
    return (
        {"shape": shape, "size": 6, "solidity": 0.25, "fillmode": "overlay", "fgcolor": "rgba(255,255,255,0.9)"}
        if shape
        else None
    )
