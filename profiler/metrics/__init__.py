"""Metrics: pure functions from trace tables to figures, one definition each (docs/metrics.md).

tables = load_tables(capture)
pass_figures(*tables)["pass"]        # one row a pass
layer_figures(tables.events)         # C, T, wait of every layer
"""

from __future__ import annotations

from profiler.metrics.devices import NO_COPIES, CopyFigures, DeviceFigures, device_figures
from profiler.metrics.events import EVENT_COLUMNS
from profiler.metrics.figures import (
    FIGURES,
    JUDGED,
    SCOPES,
    SPEEDS,
    CaptureTables,
    Figure,
    Scope,
    load_tables,
    pass_figures,
)
from profiler.metrics.layers import layer_figures, ubatch_figures
from profiler.metrics.pieces import OverlapByPass
from profiler.metrics.readings import reading_columns, reading_figures
from profiler.schema import DIRECTIONS

__all__ = [
    "DIRECTIONS",
    "EVENT_COLUMNS",
    "FIGURES",
    "JUDGED",
    "NO_COPIES",
    "SCOPES",
    "SPEEDS",
    "CaptureTables",
    "CopyFigures",
    "DeviceFigures",
    "Figure",
    "OverlapByPass",
    "Scope",
    "device_figures",
    "layer_figures",
    "load_tables",
    "pass_figures",
    "reading_columns",
    "reading_figures",
    "ubatch_figures",
]
