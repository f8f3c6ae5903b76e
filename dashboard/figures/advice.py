"""Advice as a chart: time to first token against decode, what nothing beats among all that was looked at."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

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
            text=[f"{held:.3g} GiB" for held in mine[MEMORY]], textposition="top center",
            marker={"size": 11, "color": style["colour"], "symbol": style["marker"]},
            hovertext=_hovers(mine), hoverinfo="text", cliponaxis=False,
        )  # fmt: skip
    styled(figure, height=380)
    figure.update_xaxes(title=f"{TTFT}: less is better", type="log", dtick="D2")
    figure.update_yaxes(title=f"{up}: {'more is better' if up == DECODE else 'less is better'}")
    return figure


def _hovers(rows: pd.DataFrame) -> list[str]:
    return [
        f"{for_plotly(arm)} -ub {ubatch}: TTFT {ttft:,.4g} ms"
        + ("" if pd.isna(decode) else f", decode {decode:,.4g} t/s")
        + f", {held:.3g} GiB"
        for arm, ubatch, ttft, decode, held in rows[["arm", "-ub", TTFT, DECODE, MEMORY]].itertuples(index=False)
    ]
