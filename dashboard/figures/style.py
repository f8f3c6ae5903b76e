"""What all figures share: Okabe and Ito's colours, which people with any colour vision can tell apart on both
themes; quiet axes; each arm's colour, marker and dash.

Colour never stands alone: exposed copy is hatched, arms have markers and dashes, verdicts have words and signs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import plotly.graph_objects as go

BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
VERMILLION, PURPLE, YELLOW, GREY = "#D55E00", "#CC79A7", "#F0E442", "#8A8F98"

# What events are; "on" is the colour of text on each.
TIMELINE: Final[dict[str, dict[str, object]]] = {
    "light": {
        "h2d": BLUE,
        "d2h": PURPLE,
        "d2d": SKY,
        "compute": GREEN,
        "cpu_compute": ORANGE,
        "wait": GREY,
        "api": "#B4B8C0",
        "exposed": VERMILLION,
        "on": {"h2d": "#FFFFFF", "d2h": "#1A1A1A", "d2d": "#1A1A1A", "compute": "#FFFFFF", "cpu_compute": "#1A1A1A"},
    },
    "dark": {
        "h2d": "#4FA8DE",
        "d2h": "#D692B8",
        "d2d": "#8CCBF0",
        "compute": "#2DB88D",
        "cpu_compute": "#F2D249",
        "wait": "#8A8F98",
        "api": "#5F6570",
        "exposed": "#FF7A29",
        "on": dict.fromkeys(("h2d", "d2h", "d2d", "compute", "cpu_compute"), "#101418"),
    },
}

# Where a pass's time goes. Mid-tones, so that they read on both backgrounds; orange is too pale for that.
SPENT: Final = {"compute": GREEN, "hidden": BLUE, "exposed": VERMILLION, "other": PURPLE, "host": "#DB9600"}

# Arms, in the order in which they appear in a capture; the baseline is the quiet one.
# Not Okabe and Ito's purple, which deuteranopia does not tell from grey.
ARM_COLOURS: Final = (GREY, BLUE, ORANGE, GREEN, SKY, VERMILLION, "#A0448A", YELLOW)
ARM_MARKERS: Final = ("circle", "diamond", "square", "triangle-up", "cross", "x", "star", "hexagon")
ARM_DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash")

# Worse (orange) through no difference to better (blue), over the background of either theme and under its text.
DIVERGING: Final = ((0.0, "rgba(213,94,0,0.6)"), (0.5, "rgba(128,136,150,0.15)"), (1.0, "rgba(0,114,178,0.6)"))
# From nothing to blue: what is empty lets the background of either theme through.
SEQUENTIAL: Final = ((0.0, "rgba(43,140,201,0.03)"), (0.01, "rgba(43,140,201,0.25)"), (1.0, "rgba(20,110,180,1)"))


GRID = "rgba(128,136,150,0.22)"


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


def arm_style(arm: str, arms: Sequence[str]) -> dict[str, Any]:
    """Colour, marker and dash of an arm: always the same inside a capture, and never colour alone."""
    place = list(arms).index(arm) if arm in arms else 0
    return {
        "colour": ARM_COLOURS[place % len(ARM_COLOURS)],
        "marker": ARM_MARKERS[place % len(ARM_MARKERS)],
        "dash": ARM_DASHES[place % len(ARM_DASHES)],
    }
