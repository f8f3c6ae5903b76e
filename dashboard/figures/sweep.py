"""A sweep: how many times as fast as A each arm is, over the grid of cells and along one axis, and the figures
themselves. Arm B stands out; the others are faint and labelled at their lines' ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

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
from dashboard.figures.style import DIVERGING, GREY, arm_style, styled
from dashboard.text import SIGNS, for_plotly
from executor.units import format_factor
from profiler.report.sweep import DEPTH, PROMPT, UBATCH, Crossover

AXIS_NAMES: Final = {UBATCH: "over ubatch", DEPTH: "over depth", PROMPT: "over prompt"}
AXIS_TITLES: Final = {
    "n_ubatch": "ubatch, tokens",
    "n_depth": "depth, tokens already in the KV cache",
    "n_prompt": "prompt, tokens",
}
_LEAST_SPAN: Final = 0.05  # of the heatmap's colours, in the factor's logarithm: 5 % either way are not yet dark
_PALE: Final = 0.5  # of a factor's colour, where no verdict is due
_PLACE_HEIGHT: Final = 46
_DODGE: Final = 0.012  # of the axis's width between the intervals of two arms


def grid_figure(grid: pd.DataFrame, verdict_words: pd.DataFrame, across: str, chosen: tuple[float, float]) -> go.Figure:
    """How many times as fast B is, over depth (down) and ubatch or prompt (across); pale: no verdict is due. A click on
    a place selects its point, whose `customdata` is (depth, size).

    grid: factors; verdict_words: for each place, the verdict or why there is none; chosen: the (depth, size) shown.
    """
    factors, words = grid.to_numpy(float), verdict_words.to_numpy()
    logs = np.log(factors)
    shown = np.where(np.isin(words.astype(str), list(SIGNS)), logs, _PALE * logs)
    largest = max(_LEAST_SPAN, float(np.nanmax(np.abs(logs))) if np.isfinite(logs).any() else _LEAST_SPAN)
    sizes, depths = ([f"{value:,.0f}" for value in edge] for edge in (grid.columns, grid.index))
    figure = go.Figure(
        go.Heatmap(
            z=shown, x=sizes, y=depths, zmin=-largest, zmax=largest, colorscale=DIVERGING, showscale=False,
            xgap=3, ygap=3, hoverinfo="skip",
        )
    )  # fmt: skip
    figure.add_scatter(**_places(grid, factors, words))
    styled(figure, height=86 + _PLACE_HEIGHT * len(grid), legend=False, clickmode="event+select", dragmode=False)
    figure.update_layout(hoverdistance=-1)  # a click anywhere in a place is meant for its point
    for row, column in np.argwhere((grid.index.to_numpy()[:, None] == chosen[0]) & (grid.columns == chosen[1])):
        edges = {"x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5}
        figure.add_shape(type="rect", line={"width": 2.5, "color": GREY}, **edges)
    edges = {"type": "category", "showgrid": False, "fixedrange": True}
    figure.update_xaxes(title=AXIS_TITLES[across], range=[-0.5, len(sizes) - 0.5], **edges)
    figure.update_yaxes(title="depth", range=[-0.5, len(depths) - 0.5], **edges)
    return figure


def _places(grid: pd.DataFrame, factors: np.ndarray, words: np.ndarray) -> dict[str, Any]:
    """The text of each place, as points, for plotly selects no places of a heatmap."""
    places = [
        (float(depth), float(size), factors[row, column], words[row, column])
        for row, depth in enumerate(grid.index)
        for column, size in enumerate(grid.columns)
        if np.isfinite(factors[row, column])
    ]
    texts = [f"{format_factor(fast)} {SIGNS.get(str(word), '')}".strip() for _, _, fast, word in places]
    unchanged = {"marker": {"opacity": 1}}
    return {
        "x": [f"{size:,.0f}" for _, size, _, _ in places],
        "y": [f"{depth:,.0f}" for depth, _, _, _ in places],
        "customdata": [[depth, size] for depth, size, _, _ in places],
        "mode": "markers+text",
        "text": texts,
        "marker": {"size": _PLACE_HEIGHT - 8, "color": "rgba(0,0,0,0)"},
        "selected": unchanged,
        "unselected": unchanged,  # its text: style.css
        "hovertext": [
            f"depth {d:,.0f}, {s:,.0f} tokens: {format_factor(f)} x as fast, {for_plotly(w)}" for d, s, f, w in places
        ],
        "hoverinfo": "text",
        "showlegend": False,
    }


def ratio_figure(rows: pd.DataFrame, axis: str, arms: SweepArms, crossovers: Mapping[str, Crossover]) -> go.Figure:
    """How many times as fast as A each arm is along `axis`, with B's interval as a band and a line at 1.

    rows: `profiler.report.sweep.factors_as_fast`; crossovers are marked where the axis is no depth.
    """
    figure = go.Figure()
    drawn = [arm for arm in arms.names if (rows["arm"] == arm).any() and arm not in arms.ceilings]
    for arm in sorted(drawn, key=lambda arm: arm == arms.b):  # B last, over the others
        mine = rows[rows["arm"] == arm].sort_values(axis)
        if arm == arms.b and mine["fast_low"].notna().all():
            figure.add_scatter(**arm_band(mine[axis], mine["fast_low"], mine["fast_high"], arm, arms))
        figure.add_scatter(**arm_line(mine[axis].to_numpy(), mine["fast"].to_numpy(), arm, arms))
    figure.add_hline(y=1, line={"color": GREY, "width": 1.5})
    styled(figure, height=340, legend=False)
    figure.update_xaxes(title=AXIS_TITLES[axis], **size_ticks(rows[axis]))
    of_b = rows[rows["arm"] == arms.b]
    known = np.concatenate([[1.0], rows[rows["arm"].isin(drawn)]["fast"], of_b["fast_low"], of_b["fast_high"]])
    log_axis(figure, known, f"times as fast as {for_plotly(arms.a)}")
    label_ends(figure, {arm: rows[rows["arm"] == arm].sort_values(axis) for arm in drawn}, "fast", 1.0, arms)
    if axis != DEPTH:
        for arm, found in crossovers.items():
            _mark(figure, arm, found)
    return figure


def sweep_figure(rows: pd.DataFrame, figure_name: str, axis: str, arms: SweepArms) -> go.Figure:
    """Medians along `axis` on a logarithmic scale, the intervals of arms side by side; over the lines of A and B the
    limit max(C, T) of each.
    """
    figure = go.Figure()
    scale = SCALES.get(figure_name, 1.0)
    by_arm = {arm: rows[rows["arm"] == arm].sort_values(axis) for arm in arms.names if (rows["arm"] == arm).any()}
    for number, arm in enumerate(sorted(by_arm, key=arms.stands_out)):
        mine = by_arm[arm]
        x = _beside(mine[axis].to_numpy(float), number - (len(by_arm) - 1) / 2, axis)
        figure.add_scatter(**arm_line(x, mine["median"].to_numpy() * scale, arm, arms), error_y=_intervals(mine, scale))
    for arm in filter(arms.stands_out, by_arm):  # over the lines, which reach them where all is hidden
        if by_arm[arm]["limit"].notna().any():
            figure.add_scatter(**_limit(by_arm[arm], axis, scale, arm, arms))
    styled(figure, height=400, legend=False)
    figure.update_xaxes(title=AXIS_TITLES[axis], **size_ticks(rows[axis]))
    known = np.concatenate([rows[name].dropna().to_numpy() * scale for name in ("median", "low", "high", "limit")])
    log_axis(figure, known, axis_title(figure_name))
    label_ends(figure, by_arm, "median", scale, arms)
    return figure


def arms_ratio_figure(rows: pd.DataFrame, arms: SweepArms) -> go.Figure:
    """`ratio_figure` where no size is known, as of callables: a point with its interval an arm, and a line at 1."""
    renamed = rows.drop(columns=["median", "low", "high"], errors="ignore")
    renamed = renamed.rename(columns={"fast": "median", "fast_low": "low", "fast_high": "high"})
    figure = _points(renamed, 1.0, f"times as fast as {for_plotly(arms.a)}", arms)
    figure.add_hline(y=1, line={"color": GREY, "width": 1.5})
    return figure


def arms_figure(rows: pd.DataFrame, figure_name: str, arms: SweepArms) -> go.Figure:
    """`sweep_figure` where no size is known: a point with its interval an arm."""
    return _points(rows, SCALES.get(figure_name, 1.0), axis_title(figure_name), arms)


def _points(rows: pd.DataFrame, scale: float, title: str, arms: SweepArms) -> go.Figure:
    """rows: one an arm, with `median`, `low` and `high`; in their order, from 0 up."""
    figure = go.Figure()
    for arm in [name for name in arms.names if (rows["arm"] == name).any()]:
        mine = rows[rows["arm"] == arm]
        drawn = arm_line(np.array([for_plotly(arm)]), mine["median"].to_numpy() * scale, arm, arms)
        figure.add_scatter(**drawn, error_y=_intervals(mine, scale))
    styled(figure, height=340, legend=False)
    figure.update_xaxes(type="category")
    figure.update_yaxes(title=title, rangemode="tozero")
    return figure


def _intervals(mine: pd.DataFrame, scale: float) -> dict[str, Any]:
    median = mine["median"].to_numpy()
    return {
        "type": "data",
        "symmetric": False,
        "array": (mine["high"].to_numpy() - median) * scale,
        "arrayminus": (median - mine["low"].to_numpy()) * scale,
        "thickness": 1.3,
        "width": 3,
    }


def _beside(x: np.ndarray, places: float, axis: str) -> np.ndarray:
    """Moved aside, so that the arms' intervals do not hide one another."""
    if len(x) < 2 or axis == DEPTH or x.min() <= 0:
        return x
    return np.asarray(x * (x.max() / x.min()) ** (_DODGE * places / 2))


def _limit(mine: pd.DataFrame, axis: str, scale: float, arm: str, arms: SweepArms) -> dict[str, Any]:
    return {
        "x": mine[axis].to_numpy(),
        "y": mine["limit"].to_numpy() * scale,
        "name": f"limit of {for_plotly(arm)}: max(C, T)",
        "mode": "lines",
        "line": {"color": arm_style(arm, arms.names)["colour"], "dash": "dot", "width": 2},
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
