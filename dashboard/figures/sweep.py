"""A sweep: lines over the ubatch, the depth or the prompt for every arm, and the change of one arm against another over
the grid.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.figures.style import DIVERGING, GREY, TEXT_ON_DIVERGING, arm_style, styled
from dashboard.text import SIGNS, for_plotly
from profiler.metrics import FIGURES
from profiler.report.sweep import DEPTH, PROMPT, UBATCH, Crossover

AXIS_NAMES: Final = {UBATCH: "over ubatch", DEPTH: "over depth", PROMPT: "over prompt"}
AXIS_TITLES: Final = {
    "n_ubatch": "ubatch, tokens",
    "n_depth": "depth, tokens already in the KV cache",
    "n_prompt": "prompt, tokens",
}
_FEW: Final = 3  # columns whose words fit on a phone
SCALES: Final = {"ttft_ns": 1e-6, "wall_ns": 1e-6}


def axis_title(figure_name: str) -> str:
    """`time to first token, ms`: what is drawn, and its unit after SCALES."""
    figure = FIGURES[figure_name]
    return f"{figure.title or figure.label}, {'ms' if figure.unit == 'ns' else 'tokens a second'}"


def sweep_figure(
    rows: pd.DataFrame,
    figure_name: str,
    axis: str,
    arms: Sequence[str],
    limits_of: Sequence[str] = (),
    crossovers: Mapping[str, Crossover] | None = None,
    ceilings: Collection[str] = (),
) -> go.Figure:
    """Medians with their intervals over `axis`. `arms` fixes colours and markers; `limits_of` says for which arms the
    max(C, T) limit is drawn; `crossovers` are marked where the axis is no depth; `ceilings` keep everything
    resident."""
    figure = go.Figure()
    scale = SCALES.get(figure_name, 1.0)
    for arm in [arm for arm in arms if (rows["arm"] == arm).any()]:
        mine = rows[rows["arm"] == arm].sort_values(axis)
        figure.add_scatter(**_line(mine, axis, scale, arm, arms, is_ceiling=arm in ceilings))
        if arm in limits_of and mine["limit"].notna().any():
            figure.add_scatter(**_limit(mine, axis, scale, arm, arms))
    styled(figure, height=430)
    figure.update_xaxes(title=AXIS_TITLES[axis], **_ticks(rows[axis]))
    figure.update_yaxes(title=axis_title(figure_name), rangemode="tozero")
    if axis != "n_depth":
        for arm, found in (crossovers or {}).items():
            _mark(figure, arm, found)
    return figure


def _line(
    mine: pd.DataFrame, axis: str, scale: float, arm: str, arms: Sequence[str], *, is_ceiling: bool
) -> dict[str, object]:
    style = arm_style(arm, arms)
    median = mine["median"].to_numpy() * scale
    name = f"{arm} (the ceiling: all resident)" if is_ceiling else arm
    return {
        "x": mine[axis].to_numpy(),
        "y": median,
        "name": for_plotly(name),
        "mode": "lines+markers",
        "line": {"color": style["colour"], "dash": style["dash"], "width": 2.5},
        "marker": {"symbol": style["marker"], "size": 9},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": mine["high"].to_numpy() * scale - median,
            "arrayminus": median - mine["low"].to_numpy() * scale,
            "thickness": 1.3,
            "width": 4,
        },
        "hovertemplate": f"{for_plotly(arm)}: %{{y:,.4g}}<extra></extra>",
    }


def _limit(mine: pd.DataFrame, axis: str, scale: float, arm: str, arms: Sequence[str]) -> dict[str, object]:
    return {
        "x": mine[axis].to_numpy(),
        "y": mine["limit"].to_numpy() * scale,
        "name": f"limit of {for_plotly(arm)}: max(C, T)",
        "mode": "lines",
        "line": {"color": arm_style(arm, arms)["colour"], "dash": "dot", "width": 1.5},
        "hovertemplate": f"if {for_plotly(arm)} hid all it can: %{{y:,.4g}}<extra></extra>",
    }


def _mark(figure: go.Figure, arm: str, found: Crossover) -> None:
    """A line with its interval; a span alone where no more is known than the sizes between which it lies."""
    if found.n_ubatch is None:
        where = f"between {found.below:,.0f} and {found.above:,.0f}"
    else:
        where = f"{found.n_ubatch:,.0f}"
        figure.add_vline(x=found.n_ubatch, line={"color": GREY, "width": 1.5, "dash": "dash"})
    text = f"crossover of {for_plotly(arm)}: {where}"
    # On a logarithmic axis plotly takes an annotation's place as the logarithm, but a line's as the value.
    figure.add_annotation(
        x=np.log10(found.n_ubatch or found.below),
        y=1,
        yref="paper",
        text=text,
        showarrow=False,
        xanchor="left",
        yanchor="top",
        xshift=5,
    )
    low, high = (found.below, found.above) if found.n_ubatch is None else (found.low, found.high)
    if low is not None and high is not None and high > low:
        figure.add_vrect(x0=low, x1=high, fillcolor=GREY, opacity=0.12, line_width=0)


def _ticks(values: pd.Series[float]) -> dict[str, object]:
    """Ubatches and prompts double, so their axis is logarithmic; ticks are the measured sizes."""
    measured = np.sort(values.dropna().unique())
    is_log = len(measured) > 0 and measured[0] > 0 and values.name != "n_depth"
    return {
        "type": "log" if is_log else "linear",
        "tickmode": "array",
        "tickvals": measured,
        "ticktext": [f"{value:,.0f}" for value in measured],
    }


def change_figure(grid: pd.DataFrame, verdicts: pd.DataFrame, across: str = "n_ubatch") -> go.Figure:
    """How much better B is than A, in per cent, over depth (down) and ubatch or prompt (across); grey: unclear.

    grid: shares, +0.31 is 31 % better; verdicts: the words for each place.
    """
    shown = grid.to_numpy(float) * 100
    largest = max(5.0, float(np.nanmax(np.abs(shown))) if np.isfinite(shown).any() else 5.0)
    figure = go.Figure(
        go.Heatmap(
            z=np.where(verdicts.to_numpy() == "inconclusive", np.where(np.isfinite(shown), 0.0, np.nan), shown),
            x=[f"{value:,.0f}" for value in grid.columns],
            y=[f"{value:,.0f}" for value in grid.index],
            text=_place_texts(shown, verdicts.to_numpy()),
            texttemplate="%{text}",
            textfont={"color": TEXT_ON_DIVERGING},
            zmid=0,
            zmin=-largest,
            zmax=largest,
            colorscale=DIVERGING,
            colorbar={"title": "better, %", "thickness": 10},
            xgap=3,
            ygap=3,
            hovertemplate=f"{across.removeprefix('n_')} %{{x}}, depth %{{y}}: %{{text}}<extra></extra>",
        )
    )
    styled(figure, height=110 + 62 * len(grid), legend=False)
    figure.update_xaxes(title=AXIS_TITLES[across], type="category", showgrid=False)
    figure.update_yaxes(title="depth", type="category", showgrid=False)
    return figure


def _place_texts(shown: np.ndarray, verdicts: np.ndarray) -> list[list[str]]:
    is_short = shown.shape[1] > _FEW
    return [
        [_place_text(value, verdict, is_short=is_short) for value, verdict in zip(values, row, strict=True)]
        for values, row in zip(shown, verdicts, strict=True)
    ]


def _place_text(percent: float, verdict: object, *, is_short: bool) -> str:
    """The change and its verdict; many columns have no room for words on a phone, but for their signs."""
    if not np.isfinite(percent):
        return ""
    if is_short and verdict in SIGNS:
        return f"{percent:+.1f}<br>{SIGNS[str(verdict)]}"
    return f"{percent:+.1f} %<br>{for_plotly(verdict)}"
