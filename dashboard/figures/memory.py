"""What the device held: stacked parts an arm, and what each slot held when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboard.figures.style import BLUE, GREEN, GREY, ORANGE, styled
from dashboard.text import for_plotly
from executor.units import column_scale, format_bytes
from profiler.metrics.memory import MEMORY_PARTS, HeldOverTime

PART_LABELS: Final = {
    "resident": "weights that stay",
    "slots": "slots for streamed weights",
    "bank": "expert cache's bank",
    "other": "activations, KV cache, the rest",
}
_STYLES: Final = {"resident": (GREEN, ""), "slots": (BLUE, "/"), "bank": (ORANGE, "x"), "other": ("#B4B8C0", "")}
_FAINT: Final = {"resident": "rgba(0,158,115,0.25)", "bank": "rgba(230,159,0,0.25)"}
_MS: Final = 1e6
MAX_BARS: Final = 4000
_STATES: Final = {"filling": (BLUE, ""), "full, waiting": (ORANGE, "/"), "read": (GREEN, ""), "kept": ("#C4C8D0", "")}
_MAX_SLOTS: Final = 64
_HELD_HEIGHT: Final = 300


def parts_figure(parts: pd.DataFrame, labels: Sequence[str]) -> go.Figure:
    """Stacked horizontal bars of `memory_parts`, a row an arm."""
    figure = go.Figure()
    scale, unit = column_scale(float(parts[list(MEMORY_PARTS)].sum(axis=1).max()), "bytes")
    for part in MEMORY_PARTS:
        values = parts[part].to_numpy(float)
        if not (values > 0).any():
            continue
        colour, shape = _STYLES[part]
        pattern = {"shape": shape, "size": 6, "solidity": 0.22, "fillmode": "overlay", "fgcolor": "white"}
        figure.add_bar(
            y=[for_plotly(label) for label in labels],
            x=values / scale,
            orientation="h",
            name=PART_LABELS[part],
            marker={"color": colour, "pattern": pattern if shape else None},
            hovertemplate=f"{PART_LABELS[part]}: %{{x:,.4g}} {unit}<extra></extra>",
        )
    styled(figure, height=110 + 46 * len(labels), barmode="stack", bargap=0.35)
    figure.update_layout(legend={"traceorder": "normal"})
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(title=f"{unit} on the device", rangemode="tozero")
    return figure


def over_time_figure(found: HeldOverTime, holdings: pd.DataFrame) -> go.Figure:
    """`held_figure` above `slots_figure`, on one axis of time."""
    above, below = held_figure(found), slots_figure(holdings)
    heights = [_HELD_HEIGHT, below.layout.height]
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08, row_heights=heights)
    figure.add_traces(above.data, rows=1, cols=1)
    figure.add_traces(below.data, rows=2, cols=1)
    for note in above.layout.annotations:
        figure.add_annotation(note, row=1, col=1)
    styled(figure, height=sum(heights), barmode="overlay", bargap=0.25)
    figure.update_layout(uniformtext=below.layout.uniformtext)
    figure.update_yaxes(above.layout.yaxis, row=1, col=1)
    figure.update_yaxes(below.layout.yaxis, row=2, col=1)
    end = max(float(found.time_ns.max()) / _MS, below.layout.xaxis.range[1])
    figure.update_xaxes(range=[0, end])
    figure.update_xaxes(title=below.layout.xaxis.title, row=2, col=1)
    return figure


def slots_figure(holdings: pd.DataFrame) -> go.Figure:
    """Which layer each slot held when, and whether it was filling, full and waiting, read, or kept after that.

    holdings: `slot_holdings`; 64 slots and MAX_BARS fillings at most.
    """
    first = sorted(holdings["slot"].unique().tolist())[:_MAX_SLOTS]
    drawn = holdings[holdings["slot"].isin(first)].iloc[:MAX_BARS]
    end = drawn["end_ns"].astype(float)
    filled = drawn["filled_ns"].astype(float).clip(upper=end)
    # Of what nobody is known to read it is not known either that it waits.
    read = drawn["read_ns"].astype(float).fillna(filled).clip(lower=filled, upper=end)
    done = drawn["done_ns"].astype(float).fillna(read).clip(lower=read, upper=end)
    slots = [f"slot {slot}" for slot in drawn["slot"].astype(int)]
    pattern = {"size": 6, "solidity": 0.25, "fillmode": "overlay", "fgcolor": "white"}
    layers = ["" if pd.isna(layer) else f"L{int(layer)}" for layer in drawn["layer"]]
    figure = go.Figure()
    for (name, (colour, shape)), begin, until in zip(
        _STATES.items(), (drawn["start_ns"].astype(float), filled, read, done), (filled, read, done, end), strict=True
    ):
        lengths = (until - begin).to_numpy() / _MS
        figure.add_bar(
            y=slots,
            x=lengths.round(6),
            base=(begin.to_numpy() / _MS).round(6),
            orientation="h",
            name=name,
            text=layers if name == "filling" else None,
            textposition="inside",
            insidetextanchor="start",
            marker={"color": colour, "pattern": pattern | {"shape": shape} if shape else None},
            customdata=layers,
            hovertemplate=f"%{{y}}: %{{customdata}} {name} for %{{x:,.3g}} ms<extra></extra>",
        )
    styled(figure, height=120 + 34 * max(drawn["slot"].nunique(), 1), barmode="overlay", bargap=0.25)
    figure.update_layout(uniformtext={"minsize": 10, "mode": "hide"})  # a name that does not fit is no name
    figure.update_xaxes(title="ms after the pass's start", range=[0, float(end.max()) / _MS])
    figure.update_yaxes(showgrid=False, autorange="reversed", categoryorder="category ascending")
    return figure


def held_figure(found: HeldOverTime) -> go.Figure:
    """Device memory over the pass: weights that stay, the bank, and on top what the slots hold; their most is marked.

    Where it is unknown what stays, the slots' part stands alone and is named so. The pass's peak, which counts
    everything, is a line of its own.
    """
    peak = found.peak_bytes
    scale, unit = column_scale(max(found.most_bytes, peak or 0.0), "bytes")
    time, total = found.time_ns / _MS, found.held / scale
    span = [time.min(), time.max()]
    figure = go.Figure()
    for part, n_bytes in found.stays.items():
        colour = _STYLES[part][0]
        figure.add_scatter(
            x=span, y=[n_bytes / scale] * 2, name=PART_LABELS[part], stackgroup="stays", mode="lines",
            line={"color": colour, "width": 1}, fillcolor=_FAINT[part],
            hovertemplate=f"{PART_LABELS[part]}: %{{y:,.4g}} {unit}<extra></extra>",
        )  # fmt: skip
    figure.add_scatter(
        x=time, y=total, mode="lines",
        name="with what the slots hold" if found.stays else "what the slots hold",
        line={"color": BLUE, "width": 1.5, "shape": "hv"},
        hovertemplate=f"%{{x:.2f}} ms: %{{y:,.4g}} {unit}<extra></extra>",
    )  # fmt: skip
    if peak is not None:
        figure.add_scatter(
            x=span, y=[peak / scale] * 2, mode="lines", name="the device's peak, with all that it reserves",
            line={"color": GREY, "width": 1.5, "dash": "dash"},
            hovertemplate=f"peak: %{{y:,.4g}} {unit}<extra></extra>",
        )  # fmt: skip
    note = f"at most {format_bytes(found.most_bytes)}"
    figure.add_annotation(  # over the line's end: at its most it lies on other lines
        x=span[1], y=total.max(), text=note, showarrow=False, xanchor="right", yanchor="bottom"
    )
    styled(figure, height=_HELD_HEIGHT)
    figure.update_xaxes(title="ms after the pass's start", range=[0, float(time.max())])
    figure.update_yaxes(title=unit, rangemode="tozero")
    return figure
