"""What all figures share: quiet axes, room for labels, colours by arm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import plotly.graph_objects as go

from dashboard.palette import ARMS, DASHES, MARKERS

GRID = "rgba(128,136,150,0.22)"
_BYTES: Final = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def styled(figure: go.Figure, *, height: int, legend: bool = True, **layout: Any) -> go.Figure:
    """The figure with the shared layout; the theme's own fonts and background show through."""
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 12, "t": 36 if legend else 12, "b": 8},
        showlegend=legend,
        legend={"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "xanchor": "left", "title": None},
        hoverlabel={"align": "left", "namelength": -1},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        **layout,
    )
    for update in (figure.update_xaxes, figure.update_yaxes):
        update(gridcolor=GRID, zeroline=False, automargin=True, separatethousands=True)
    return figure


def byte_axis(largest: float) -> tuple[float, str]:
    """What to divide bytes by, and the unit, so that the axis of values up to `largest` needs no thousands."""
    return next(((scale, unit) for scale, unit in _BYTES if largest >= scale), _BYTES[-1])


def arm_style(arm: str, arms: Sequence[str]) -> dict[str, Any]:
    """Colour, marker and dash of an arm: always the same inside a capture, and never colour alone."""
    place = list(arms).index(arm) if arm in arms else 0
    return {
        "colour": ARMS[place % len(ARMS)],
        "marker": MARKERS[place % len(MARKERS)],
        "dash": DASHES[place % len(DASHES)],
    }
