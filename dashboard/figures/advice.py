"""Advice as a chart: time to first token against decode, what nothing beats among all that was looked at."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.figures.size_axes import round_ticks
from dashboard.figures.style import GREY, arm_style, styled
from dashboard.text import for_plotly

_AIR, _BEYOND = 1.25, 4.0  # times the front's ends are drawn
_LABEL_WIDTH: Final = 0.13  # of the axes' lengths, on a phone
_LABEL_HEIGHT: Final = 0.06
TTFT, DECODE, MEMORY = "TTFT, ms", "decode, t/s", "memory, GiB"


def pareto_figure(front: pd.DataFrame, looked_at: pd.DataFrame) -> go.Figure:
    """Settings by time to first token (across, less is better) and decode rate (up, more is better), or by memory where
    nothing is generated: all faint, and those that no other beats by arm, each with its memory beside it.

    front, looked_at: a row a setting, columns arm, -ub, TTFT, DECODE and MEMORY.
    """
    up = DECODE if front[DECODE].notna().any() else MEMORY
    figure = go.Figure()
    left, right = front[TTFT].min() / _AIR, front[TTFT].max() * _BEYOND
    n_near = int((looked_at[TTFT] <= right).sum())
    cut = "" if n_near == len(looked_at) else f" ({len(looked_at) - n_near:,} slower beyond the right edge)"
    figure.add_scatter(
        x=looked_at[TTFT], y=looked_at[up], mode="markers", name=f"looked at{cut}",
        marker={"size": 5, "color": GREY, "opacity": 0.45}, hovertext=_hovers(looked_at), hoverinfo="text",
    )  # fmt: skip
    labels = _apart(front[TTFT], front[up], front[MEMORY], np.log(right / left), looked_at[up])
    arms = sorted(front["arm"].unique())
    for arm in arms:
        mine, style = front[front["arm"] == arm], arm_style(arm, ["", *arms])
        figure.add_scatter(
            x=mine[TTFT], y=mine[up], name=for_plotly(arm), mode="markers+text",
            text=labels[front["arm"] == arm].tolist(), textposition="top center",
            marker={"size": 11, "color": style["colour"], "symbol": style["marker"]},
            hovertext=_hovers(mine), hoverinfo="text", cliponaxis=False,
        )  # fmt: skip
    styled(figure, height=380)
    ticks = round_ticks(float(left), float(right))
    texts = [f"{tick:,.0f}" if tick >= 1000 else f"{tick:.4g}" for tick in ticks]
    figure.update_xaxes(
        title=f"{TTFT}: less is better", type="log", tickvals=ticks, ticktext=texts,
        range=[float(np.log10(left)), float(np.log10(right))],
    )  # fmt: skip
    figure.update_yaxes(title=f"{up}: {'more is better' if up == DECODE else 'less is better'}")
    return figure


def _apart(
    ttft: pd.Series[float], up: pd.Series[float], held_gib: pd.Series[float], width: float, among: pd.Series[float]
) -> pd.Series[str]:
    """Each point's memory, but for points so near to one that has its own that the texts would lie on each other; the
    pointer on them tells it.
    """
    x = np.log(ttft.to_numpy(float)) / width
    y = up.to_numpy(float) / (float(among.max() - among.min()) or 1.0)
    labelled: list[int] = []
    for at in range(len(x)):
        if all(abs(x[at] - x[other]) > _LABEL_WIDTH or abs(y[at] - y[other]) > _LABEL_HEIGHT for other in labelled):
            labelled.append(at)
    texts = [f"{held:.3g} GiB" if at in labelled else "" for at, held in enumerate(held_gib)]
    return pd.Series(texts, ttft.index, dtype=object)


def _hovers(rows: pd.DataFrame) -> list[str]:
    return [
        f"{for_plotly(arm)} -ub {ubatch}: TTFT {ttft:,.4g} ms"
        + ("" if pd.isna(decode) else f", decode {decode:,.4g} t/s")
        + f", {held:.3g} GiB"
        for arm, ubatch, ttft, decode, held in rows[["arm", "-ub", TTFT, DECODE, MEMORY]].itertuples(index=False)
    ]
