"""What charts over sizes share: the arms with those that stand out, their lines and bands, logarithmic axes whose ticks
are the measured sizes or round numbers, and each arm's name at the end of its line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.figures.style import arm_style
from dashboard.text import for_plotly
from profiler.metrics import FIGURES
from profiler.report.sweep import DEPTH

SCALES: Final = {"ttft_ns": 1e-6, "wall_ns": 1e-6}
_FAINT: Final = 0.55
_LABEL_GAP: Final = 0.055  # of the axis's height between two labels


@dataclass(frozen=True, slots=True)
class SweepArms:
    """The arms of a sweep: all of them, which fixes colours and markers, and those that stand out."""

    names: Sequence[str]
    a: str
    b: str | None
    ceilings: Collection[str] = ()  # keep everything resident

    def stands_out(self, arm: str) -> bool:
        """Whether the arm is on show; of one arm alone, that one."""
        return arm in (self.a, self.b)


def axis_title(figure_name: str) -> str:
    """`time to first token, ms`: what is drawn, and its unit after SCALES."""
    figure = FIGURES[figure_name]
    return f"{figure.title or figure.label}, {'ms' if figure.unit == 'ns' else 'tokens a second'}"


def arm_line(x: np.ndarray, y: np.ndarray, arm: str, arms: SweepArms) -> dict[str, Any]:
    """A scatter of an arm in its style, faint where it is not on show."""
    style, on_show = arm_style(arm, arms.names), arms.stands_out(arm)
    return {
        "x": x,
        "y": y,
        "name": for_plotly(arm),
        "mode": "lines+markers",
        "opacity": 1 if on_show else _FAINT,
        "line": {"color": style["colour"], "dash": style["dash"], "width": 2.5 if on_show else 1.5},
        "marker": {"symbol": style["marker"], "size": 9 if on_show else 6},
        "hovertemplate": f"{for_plotly(arm)}: %{{y:,.4g}}<extra></extra>",
    }


def arm_band(x: pd.Series, low: pd.Series, high: pd.Series, arm: str, arms: SweepArms) -> dict[str, Any]:
    """A scatter of an arm's interval, filled."""
    return {
        "x": [*x, *x[::-1]],
        "y": [*high, *low[::-1]],
        "name": f"interval of {for_plotly(arm)}",
        "mode": "lines",
        "fill": "toself",
        "fillcolor": arm_style(arm, arms.names)["colour"],
        "opacity": 0.2,
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


def log_axis(figure: go.Figure, values: np.ndarray, title: str) -> None:
    """A logarithmic axis with some air, and numbers where they fit."""
    known = values[np.isfinite(values) & (values > 0)]
    if not len(known):
        return
    low, high = np.log10(known.min()), np.log10(known.max())
    air = max(0.06 * (high - low), 0.01)
    ticks = round_ticks(10 ** (low - air), 10 ** (high + air))
    figure.update_yaxes(
        title=title,
        type="log",
        range=[low - air, high + air],
        tickvals=ticks,
        ticktext=[f"{tick:,.0f}" if tick >= 1000 else f"{tick:.4g}" for tick in ticks],
    )


def round_ticks(low: float, high: float) -> list[float]:
    """Round numbers inside the range: 1, 2, 5 a decade; where these are too few, evenly spaced round ones."""
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    found = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5) if low <= digit * 10.0**decade <= high]
    if len(found) >= 4:
        return found
    step = next(
        step for step in sorted(d * 10.0**e for e in range(-4, 13) for d in (1, 2, 5)) if (high - low) / step <= 6
    )
    return [round(n * step, 10) for n in range(int(np.ceil(low / step)), int(high / step) + 1)]


def label_ends(
    figure: go.Figure, by_arm: Mapping[str, pd.DataFrame], column: str, scale: float, arms: SweepArms
) -> None:
    """Each arm's name at its line's right end, moved apart where they would overlap; its colour stands before it, for
    names in it would be too faint to read.
    """
    ends = {
        arm: float(np.log10(mine[column].iloc[-1] * scale)) for arm, mine in by_arm.items() if mine[column].iloc[-1] > 0
    }
    span = figure.layout.yaxis.range
    if not ends or span is None:
        return
    gap = _LABEL_GAP * (span[1] - span[0])
    free = -np.inf
    for arm, at in sorted(ends.items(), key=lambda end: end[1]):
        free = max(at, free + gap)
        mark = f'<span style="color:{arm_style(arm, arms.names)["colour"]}">\u25a0</span>'
        text = f"{mark} <b>{for_plotly(arm)}</b>" if arms.stands_out(arm) else f"{mark} {for_plotly(arm)}"
        figure.add_annotation(
            x=1, xref="paper", xanchor="left", xshift=4, y=free, text=text,
            showarrow=False, name="end",
        )  # fmt: skip
    figure.update_layout(margin={"r": 26 + 7 * min(max(map(len, ends)), 24)})


def size_ticks(values: pd.Series) -> dict[str, Any]:
    """Ubatches and prompts double, so their axis is logarithmic; ticks are the measured sizes."""
    measured = np.sort(values.dropna().unique())
    is_log = len(measured) > 0 and measured[0] > 0 and values.name != DEPTH
    return {
        "type": "log" if is_log else "linear",
        "autotickangles": [0, 45, 90],  # where a phone has no room for them side by side
        "tickmode": "array",
        "tickvals": measured,
        "ticktext": [f"{value:,.0f}" for value in measured],
    }
