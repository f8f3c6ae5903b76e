"""Figures of the selective copy: bytes moved against whole, experts touched, and who is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.figures.style import BLUE, GREEN, GREY, ORANGE, arm_style, styled
from dashboard.text import for_plotly
from executor.units import column_scale

_FEW_UBATCHES: Final = 4
_COLOURS, _SYMBOLS = (BLUE, ORANGE, GREEN), ("circle", "diamond", "square")  # of phases
_OF_ACTIVATIONS: Final = 0.001  # of the largest bar


def bytes_figure(rows: Mapping[str, pd.DataFrame], arms: Sequence[str]) -> go.Figure:
    """Bytes that each ubatch moved, a bar an arm, before what whole copies would have moved (outlined).

    rows: by arm, columns ubatch, bytes_h2d, whole_bytes.
    """
    figure = go.Figure()
    longest = max(rows.values(), key=len, default=pd.DataFrame({"ubatch": [], "whole_bytes": []}))
    largest = (float(mine[["bytes_h2d", "whole_bytes"]].max().max()) for mine in rows.values())
    scale, unit = column_scale(max(largest, default=0.0), "bytes")
    figure.add_bar(
        x=longest["ubatch"],
        y=longest["whole_bytes"] / scale,
        name="whole copies would move",
        marker={"color": "rgba(0,0,0,0)", "line": {"color": GREY, "width": 1.5}},
        width=0.85,
        hovertemplate=f"whole: %{{y:,.3g}} {unit}<extra></extra>",
    )
    width = 0.7 / max(len(rows), 1)
    for number, (arm, mine) in enumerate(rows.items()):
        style = arm_style(arm, arms)
        figure.add_bar(
            x=mine["ubatch"],
            y=mine["bytes_h2d"] / scale,
            name=f"{for_plotly(arm)} moved",
            marker={"color": style["colour"], "pattern": _pattern(number)},
            width=width,
            offset=-0.35 + number * width,
            hovertemplate=f"{for_plotly(arm)}: %{{y:,.3g}} {unit}<extra></extra>",
        )
    _ubatch_axis(figure, longest)
    styled(figure, height=340, barmode="overlay")
    figure.update_yaxes(title=f"{unit} from host to device", rangemode="tozero")
    return figure


def idle_tokens(by_arm: Mapping[str, pd.DataFrame]) -> list[int]:
    """The ubatches of decode in which no arm copied weights, but at most its activations; none where all are.

    by_arm: columns ubatch, phase, bytes_h2d, whole_bytes.
    """
    rows = pd.concat(by_arm.values(), ignore_index=True)
    largest = rows[["bytes_h2d", "whole_bytes"]].fillna(0).max(axis=1)  # of activations both are the same
    moves = (rows["phase"] != "decode") | (largest > largest.max() * _OF_ACTIVATIONS)
    moving = set(rows.loc[moves, "ubatch"])
    return sorted(set(rows["ubatch"]) - moving) if moving else []


def _ubatch_axis(figure: go.Figure, longest: pd.DataFrame) -> None:
    figure.update_xaxes(title="ubatch", dtick=1 if len(longest) <= 24 else None, showgrid=False)
    if 0 < len(longest) < _FEW_UBATCHES:  # else one pair of bars fills the page
        middle = float(longest["ubatch"].mean())
        figure.update_xaxes(range=[middle - _FEW_UBATCHES / 2, middle + _FEW_UBATCHES / 2], tickvals=longest["ubatch"])


def _pattern(number: int) -> Mapping[str, object] | None:
    return (
        None if number == 0 else {"shape": "/", "size": 6, "solidity": 0.2, "fillmode": "overlay", "fgcolor": "white"}
    )


def distinct_figure(use: pd.DataFrame, curve: pd.DataFrame) -> go.Figure:
    """Share of the experts touched over tokens in the ubatch: measured, and if all were equally likely.

    use: `profiler.metrics.experts.typical_use`; curve: n_tokens, share.
    """
    figure = go.Figure()
    for number, (name, rows) in enumerate(_by_phase(use)):
        share = rows[["distinct_share", "distinct_least", "distinct_most"]] * 100
        figure.add_scatter(
            x=rows["n_tokens"].to_numpy(),
            y=share["distinct_share"].to_numpy(),
            name=f"measured{name}",
            mode="markers",  # a line between sizes far apart would claim what lies between them
            marker={"size": 10, "color": _COLOURS[number], "symbol": _SYMBOLS[number]},
            error_y=_bars(share["distinct_share"], share["distinct_least"], share["distinct_most"]),
            hovertemplate=f"%{{x}} tokens touch %{{y:.1f}} % of the experts{name}<extra></extra>",
        )
    figure.add_scatter(
        x=curve["n_tokens"],
        y=curve["share"] * 100,
        name="modelled: every expert equally likely",
        mode="lines",
        line={"color": GREY, "dash": "dash"},
        hovertemplate="equally likely: %{y:.1f} %<extra></extra>",
    )
    styled(figure, height=340)
    sizes = np.unique(use["n_tokens"])
    figure.update_xaxes(title="tokens in the ubatch", type="log", tickvals=sizes, ticktext=[f"{n:,}" for n in sizes])
    figure.update_xaxes(autotickangles=[0, 90])  # slanted ones run into each other on a phone
    figure.update_yaxes(title="experts touched, %", range=[0, 103])
    return figure


def _by_phase(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """` in prefill`, ` in decode`, or nothing where the source says no phase; with the rows of each."""
    groups = rows.groupby("phase", sort=False, dropna=False)
    named = [(f" in {phase}" if isinstance(phase, str) else "", of_phase) for phase, of_phase in groups]
    return sorted(named, key=lambda found: found[0], reverse=True)


def _bars(middle: pd.Series[float], low: pd.Series[float], high: pd.Series[float]) -> Mapping[str, object]:
    return {"type": "data", "symmetric": False, "array": high - middle, "arrayminus": middle - low, "color": GREY}


def coverage_figure(coverage: pd.DataFrame) -> go.Figure:
    """What share of a layer's uses its N hottest experts serve: the median layer, the middle half as a band, and what
    experts used alike would serve.

    coverage: `profiler.metrics.experts.hottest_coverage`.
    """
    figure = go.Figure()
    n = coverage.index.to_numpy()
    low, high = (coverage[name].to_numpy() * 100 for name in ("low", "high"))
    figure.add_scatter(
        x=[*n, *n[::-1]], y=[*high, *low[::-1]], mode="lines", fill="toself", fillcolor=BLUE, opacity=0.2,
        line={"width": 0}, name="the middle half of the layers", hoverinfo="skip",
    )  # fmt: skip
    figure.add_scatter(
        x=n, y=coverage["median"].to_numpy() * 100, mode="lines", name="the median layer",
        line={"color": BLUE, "width": 2.5},
        hovertemplate="the %{x} hottest experts serve %{y:.1f} % of the uses<extra></extra>",
    )  # fmt: skip
    figure.add_scatter(
        x=n[[0, -1]], y=n[[0, -1]] * 100 / n[-1], mode="lines", name="experts used alike",
        line={"color": GREY, "dash": "dash"}, hoverinfo="skip",
    )  # fmt: skip
    styled(figure, height=320)
    figure.update_xaxes(title="hottest experts of a layer")
    figure.update_yaxes(title="of the layer's uses, %", range=[0, 103])
    return figure


def overlap_figure(spread: pd.DataFrame) -> go.Figure:
    """How much of a layer's experts the layer before used too: medians over the ubatches, with the middle half.

    spread: `profiler.metrics.experts.spread_by_layer`.
    """
    figure = go.Figure()
    for number, (name, rows) in enumerate(_by_phase(spread)):
        share = rows[["low", "median", "high"]] * 100
        figure.add_bar(
            x=rows["layer"].to_numpy(),
            y=share["median"].to_numpy(),
            name=name.strip() or "overlap",
            marker={"color": _COLOURS[number], "pattern": _pattern(number)},
            error_y=_bars(share["median"], share["low"], share["high"]),
            hovertemplate=f"layer %{{x}}{name}: %{{y:.1f}} %<extra></extra>",
        )
    styled(figure, height=320, barmode="group")
    figure.update_xaxes(title="layer", showgrid=False, dtick=1 if spread["layer"].nunique() <= 32 else None)
    figure.update_yaxes(title="overlap with the layer before, %", range=[0, 100])
    return figure
