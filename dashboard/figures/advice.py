"""Advice as a chart: time to first token against decode, what nothing beats among all that was looked at."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from dashboard.figures.size_axes import round_ticks
from dashboard.figures.style import GREY, arm_style, styled
from dashboard.text import for_plotly

TTFT, DECODE, MEMORY = "TTFT, ms", "decode, t/s", "memory, GiB"


def pareto_figure(front: pd.DataFrame, looked_at: pd.DataFrame) -> go.Figure:
    """Settings by time to first token (across, less is better) and decode rate (up, more is better), or by memory where
    nothing is generated: all faint, and those that no other beats by arm, each with its memory beside it.

    front, looked_at: a row a setting, columns arm, -ub, TTFT, DECODE and MEMORY.
    """
    up = DECODE if front[DECODE].notna().any() else MEMORY
    figure = go.Figure()
    figure.add_scatter(
        x=looked_at[TTFT], y=looked_at[up], mode="markers", name="looked at",
        marker={"size": 5, "color": GREY, "opacity": 0.45}, hovertext=_hovers(looked_at), hoverinfo="text",
    )  # fmt: skip
    arms = sorted(front["arm"].unique())
    for arm in arms:
        mine, style = front[front["arm"] == arm], arm_style(arm, ["", *arms])
        figure.add_scatter(
            x=mine[TTFT], y=mine[up], name=for_plotly(arm), mode="markers+text",
            text=_once([f"{held:.3g} GiB" for held in mine[MEMORY]]), textposition="top center",
            marker={"size": 11, "color": style["colour"], "symbol": style["marker"]},
            hovertext=_hovers(mine), hoverinfo="text", cliponaxis=False,
        )  # fmt: skip
    styled(figure, height=380)
    ticks = round_ticks(float(looked_at[TTFT].min()), float(looked_at[TTFT].max()))
    texts = [f"{tick:,.4g}" for tick in ticks]
    figure.update_xaxes(title=f"{TTFT}: less is better", type="log", tickvals=ticks, ticktext=texts)
    figure.update_yaxes(title=f"{up}: {'more is better' if up == DECODE else 'less is better'}")
    return figure


def _once(texts: Sequence[str]) -> list[str]:
    """Each text at the first of the points that share it, which often lie on each other."""
    return [text if texts.index(text) == at else "" for at, text in enumerate(texts)]


def _hovers(rows: pd.DataFrame) -> list[str]:
    return [
        f"{for_plotly(arm)} -ub {ubatch}: TTFT {ttft:,.4g} ms"
        + ("" if pd.isna(decode) else f", decode {decode:,.4g} t/s")
        + f", {held:.3g} GiB"
        for arm, ubatch, ttft, decode, held in rows[["arm", "-ub", TTFT, DECODE, MEMORY]].itertuples(index=False)
    ]
