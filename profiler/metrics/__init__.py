"""Metrics: pure functions from trace tables to figures, one definition each (docs/metrics.md).

tables = load_tables(capture)
pass_figures(*tables)["pass"]        # one row a pass
layer_figures(tables.events)         # C, T, wait of every layer
"""

from __future__ import annotations

from profiler.metrics.devices import NO_COPIES, CopyFigures, DeviceFigures, device_figures
from profiler.metrics.events import EVENT_COLUMNS
from profiler.metrics.layers import layer_figures
from profiler.metrics.names import FIGURES, Figure
from profiler.metrics.passes import SCOPES, Scope, pass_figures
from profiler.metrics.recording import Recording
from profiler.metrics.roles import DIRECTIONS
from profiler.metrics.tables import Tables, load_tables
from profiler.metrics.ubatches import ubatch_figures

__all__ = [
    "DIRECTIONS",
    "EVENT_COLUMNS",
    "FIGURES",
    "NO_COPIES",
    "SCOPES",
    "CopyFigures",
    "DeviceFigures",
    "Figure",
    "Recording",
    "Scope",
    "Tables",
    "device_figures",
    "layer_figures",
    "load_tables",
    "pass_figures",
    "ubatch_figures",
]
