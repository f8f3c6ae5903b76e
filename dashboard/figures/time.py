"""Charts of time: where a pass's time went, copy against compute for each layer, and how busy each lane was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.figures.style import BLUE, GREY, SEQUENTIAL, SPENT, VERMILLION, styled
from dashboard.text import for_plotly
from profiler.metrics.devices import TIME_PARTS
from profiler.metrics.lane_titles import lane_title
from profiler.metrics.timeline import Timeline
from profiler.metrics.timeline_detail import bin_edges, busy_shares, joint_extent

PART_LABELS: Final = {
    "compute_ns": "compute alone",
    "hidden_ns": "hidden copy (both at once)",
    "exposed_ns": "exposed copy",
    "other_ns": "other copies",
    "idle_ns": "idle",
    "host_compute_ns": "CPU compute (beside all of it)",
}
_HATCHES: Final = {"hidden_ns": ".", "exposed_ns": "/", "other_ns": "x"}
_NS_A_MS, _NS_A_S = 1e6, 1e9
_BAR_HEIGHT: Final = 28
_LEGEND_HEIGHT: Final = 52  # two lines: it wraps where the page is narrow
_FEW_LAYERS: Final = 12  # so many numbers fit side by side on a phone
_SECOND_BAR: Final = 0.1875  # the middle of the second of two bars that share three quarters of a layer's place
_BUSY_BINS: Final = 1500  # as a picture is wide; the Timeline page, which zooms, has more
_LONG_NS: Final = 10e9  # from here on an axis in seconds reads better
_WHOLE: Final = 100  # shares are drawn in whole per cent, a byte each


def spent_figure(spent: pd.DataFrame, labels: Sequence[str]) -> go.Figure:
    """Of each row two bars, one above the other from the same 0: copying, hidden before exposed, and computing; a third
    where the host computed. A mark stands where the time of the passes ends.

    spent: a row an arm or a device, and the columns of `profiler.metrics.devices.TIME_PARTS`, perhaps
    `host_compute_ns`; labels name the rows.
    """
    figure = go.Figure()
    names = [for_plotly(label) for label in labels]
    on_host = spent.get("host_compute_ns", pd.Series(0.0, spent.index))
    bars = [
        ("copy", "hidden", "hidden copy", spent["hidden_ns"]),
        ("copy", "exposed", "exposed copy", spent["exposed_ns"]),
        ("copy", "other", "other copies", spent["other_ns"]),
        ("compute", "compute", "compute", spent["compute_ns"] + spent["hidden_ns"]),
        ("CPU", "host", "CPU compute", on_host),
    ]
    bars = [bar for bar in bars if (bar[3] > 0).any()]
    for row, part, text, values in bars:
        figure.add_bar(
            y=[names, [row] * len(names)],
            x=values.to_numpy(float) / _NS_A_MS,
            orientation="h",
            name=text,
            marker={"color": SPENT[part], "pattern": _hatch(_HATCHES.get(f"{part}_ns", "")), "line": {"width": 0}},
            hovertemplate=f"{text}: %{{x:,.2f}} ms<extra></extra>",
        )
    whole = spent[list(TIME_PARTS)].sum(axis=1, skipna=False)
    if whole.notna().any():
        figure.add_scatter(
            y=[names, ["compute"] * len(names)],
            x=whole.to_numpy(float) / _NS_A_MS,
            mode="markers",
            name="end",
            marker={"symbol": "line-ns", "size": 22, "line": {"width": 2, "color": GREY}},
            hovertemplate="all takes %{x:,.2f} ms<extra></extra>",
        )
    n_bars = len({row for row, *_ in bars} | {"copy", "compute"}) * len(labels)
    styled(figure, height=_LEGEND_HEIGHT + 44 + _BAR_HEIGHT * n_bars, barmode="stack", bargap=0.12)
    # From the top down, so that lines of it on a phone do not run into the bars.
    legend = {"traceorder": "normal", "yref": "container", "y": 1.0, "yanchor": "top"}
    figure.update_layout(legend=legend, margin={"t": _LEGEND_HEIGHT})
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(title="ms", rangemode="tozero")
    return figure


def _hatch(shape: str) -> Mapping[str, object]:
    """Hidden and exposed copy differ in this too, not in colour alone; an empty shape is plain."""
    return {"shape": shape, "size": 6, "solidity": 0.25, "fillmode": "overlay", "fgcolor": "rgba(255,255,255,0.9)"}


def layer_figure(rows: pd.DataFrame) -> go.Figure:
    """Bars of C and T for each layer, T split into hidden and exposed; a mark over layers that are copy-bound.

    rows: `profiler.metrics.layers.typical_layers`.
    """
    figure = go.Figure()
    layer = rows["layer"].to_numpy()
    figure.add_bar(
        x=layer,
        y=rows["compute_ns"] / _NS_A_MS,
        name="C: compute",
        offsetgroup="C",
        marker={"color": SPENT["compute"]},
        hovertemplate="layer %{x}: C %{y:,.3f} ms<extra></extra>",
    )
    for part, base in (("hidden", None), ("exposed", rows["hidden_ns"] / _NS_A_MS)):
        figure.add_bar(
            x=layer,
            y=rows[f"{part}_ns"] / _NS_A_MS,
            base=base,
            name=f"T: {part} copy",
            offsetgroup="T",
            marker={"color": SPENT[part], "pattern": _hatch(_HATCHES[f"{part}_ns"])},
            hovertemplate=f"layer %{{x}}: T: {part} copy %{{y:,.3f}} ms<extra></extra>",
        )
    _mark_bound(figure, rows)
    styled(figure, height=380, barmode="group", bargap=0.25)
    figure.update_xaxes(title="layer", showgrid=False, dtick=1 if len(rows) <= _FEW_LAYERS else None)
    figure.update_yaxes(title="ms", rangemode="tozero")
    return figure


def _mark_bound(figure: go.Figure, rows: pd.DataFrame) -> None:
    """A triangle over the copy of each layer that is copy-bound."""
    bound = rows[rows["copy_bound"]]
    clear = 0.025 * float(np.nanmax(rows["copy_ns"].to_numpy(float), initial=0.0)) / _NS_A_MS  # of the bar's top
    figure.add_scatter(
        x=bound["layer"] + _SECOND_BAR,
        y=bound["copy_ns"] / _NS_A_MS + clear,
        mode="markers",
        name="copy-bound: T > C",
        marker={"symbol": "triangle-down", "size": 10, "color": GREY},
        hoverinfo="skip",
    )


def margin_figure(margin: pd.DataFrame) -> go.Figure:
    """How much time C + T leaves over the next layer's whole copy T', over the layers: the median ubatch, the middle
    half of them as a band. Above 0 prefetch pays, and there the line's marks are blue.

    margin: `profiler.metrics.layers.margin_by_layer`, in ns.
    """
    layer = margin.index.to_numpy()
    low, middle, high = (margin[name].to_numpy(float) / _NS_A_MS for name in ("low", "median", "high"))
    figure = go.Figure()
    figure.add_scatter(
        x=[*layer, *layer[::-1]], y=[*high, *low[::-1]], mode="lines", fill="toself", fillcolor=GREY, opacity=0.25,
        line={"width": 0}, name="the middle half of the ubatches", hoverinfo="skip",
    )  # fmt: skip
    figure.add_scatter(
        x=layer, y=middle, mode="lines", line={"color": GREY, "width": 2}, showlegend=False, hoverinfo="skip"
    )
    for name, colour, symbol, there in (
        ("prefetch pays", BLUE, "circle", middle > 0),
        ("prefetch loses", VERMILLION, "x", middle <= 0),
    ):
        figure.add_scatter(
            x=layer[there], y=middle[there], mode="markers", name=name,
            marker={"color": colour, "symbol": symbol, "size": 8},
            hovertemplate="layer %{x}: C + T - T' = %{y:,.3f} ms<extra></extra>",
        )  # fmt: skip
    figure.add_hline(y=0, line={"color": GREY, "width": 1.5})
    styled(figure, height=300)
    figure.update_xaxes(title="layer", showgrid=False, dtick=1 if len(margin) <= _FEW_LAYERS else None)
    figure.update_yaxes(title="C + T - T', ms")
    return figure


def busy_figure(lines: Sequence[Timeline], titles: Sequence[str]) -> go.Figure:
    """A heatmap: lanes of every side down, time across; all sides start at their own pass's start."""
    extent = joint_extent(lines)
    edges = bin_edges(extent, _BUSY_BINS)
    rows, labels = [], []
    for letter, title, line in zip("AB", titles, lines, strict=False):
        prefix = f"{letter} {title} · " if len(lines) > 1 else ""
        rows.append(busy_shares(line, edges))
        labels += [for_plotly(prefix + lane_title(lane, line.lanes)) for lane in line.lanes]
    shares = np.concatenate(rows) if rows else np.empty((0, _BUSY_BINS))
    scale, unit = (_NS_A_S, "s") if edges[-1] - edges[0] > _LONG_NS else (_NS_A_MS, "ms")
    step = float(edges[-1] - edges[0]) / _BUSY_BINS / scale
    figure = go.Figure(
        go.Heatmap(
            z=np.round(shares * _WHOLE).astype(np.uint8),
            x0=float(edges[0]) / scale + step / 2,
            dx=step,
            y=labels,
            zmin=0,
            zmax=_WHOLE,
            colorscale=SEQUENTIAL,
            colorbar={"title": "busy, %", "thickness": 10, "len": 0.9},
            hovertemplate=f"%{{y}}<br>%{{x:.2f}} {unit}: busy %{{z}} %<extra></extra>",
        )
    )
    styled(figure, height=70 + 26 * max(len(labels), 2), legend=False)
    figure.update_yaxes(autorange="reversed", showgrid=False, fixedrange=True)
    figure.update_xaxes(title=f"{unit} after the start", showgrid=False)
    return figure
