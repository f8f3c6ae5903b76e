"""How busy each lane was over time: exact shares of equal bins, whatever the number of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import plotly.graph_objects as go

from dashboard.figures.style import styled
from dashboard.palette import SEQUENTIAL
from dashboard.text import for_plotly, lane_label
from profiler.metrics.level_of_detail import bin_edges, busy_shares, joint_extent
from profiler.metrics.timeline import Timeline

N_BINS: Final = 1500
_MANY_MS: Final = 10_000  # from here on an axis in seconds reads better
_ONE_BYTE: Final = 100  # shares are drawn in whole per cent, a byte each


def busy_figure(lines: Sequence[Timeline], titles: Sequence[str]) -> go.Figure:
    """A heatmap: lanes of every side down, time across; all sides start at their own pass's start."""
    extent = joint_extent(lines)
    edges = bin_edges(extent, N_BINS)
    rows, labels = [], []
    for letter, title, line in zip("AB", titles, lines, strict=False):
        prefix = f"{letter} {title} · " if len(lines) > 1 else ""
        rows.append(busy_shares(line, edges))
        labels += [for_plotly(prefix + lane_label(lane, line.lanes)) for lane in line.lanes]
    shares = np.concatenate(rows) if rows else np.empty((0, N_BINS))
    scale, unit = (1e9, "s") if edges[-1] - edges[0] > _MANY_MS * 1e6 else (1e6, "ms")
    step = float(edges[-1] - edges[0]) / N_BINS / scale
    figure = go.Figure(
        go.Heatmap(
            z=np.round(shares * _ONE_BYTE).astype(np.uint8),
            x0=float(edges[0]) / scale + step / 2,
            dx=step,
            y=labels,
            zmin=0,
            zmax=_ONE_BYTE,
            colorscale=SEQUENTIAL,
            colorbar={"title": "busy, %", "thickness": 10, "len": 0.9},
            hovertemplate=f"%{{y}}<br>%{{x:.2f}} {unit}: busy %{{z}} %<extra></extra>",
        )
    )
    styled(figure, height=70 + 26 * max(len(labels), 2), legend=False)
    figure.update_yaxes(autorange="reversed", showgrid=False, fixedrange=True)
    figure.update_xaxes(title=f"{unit} after the start", showgrid=False)
    return figure
