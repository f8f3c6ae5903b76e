"""Rows of what the host did: CUDA calls, and waits. One function a table of the export."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from profiler.arithmetic.intervals import Int64
from profiler.importers.absent import absent, known_where
from profiler.importers.nsys.rows import (
    EventRows,
    TextCodes,
    api_name,
    correlation_of,
    drop,
    impossible,
    make_rows,
    process_of,
)
from profiler.importers.nsys.tables import (
    NO_STREAM,
    SYNC_KINDS,
    ExportTables,
)

RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCHRONIZATION: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
CALL_COLUMNS: Final = ("start", "end", "globalTid", "correlationId", "nameId")


def api_calls(tables: ExportTables, labels: TextCodes, dropped: Counter[str]) -> EventRows:
    """CUDA runtime and driver calls."""
    read = tables.ints(RUNTIME, CALL_COLUMNS)
    rows = make_rows(
        "api",
        start=read["start"],
        end=read["end"],
        process=process_of(read["globalTid"]),
        thread=read["globalTid"],
        correlation=correlation_of(read),
        name=labels.of_ids(read["nameId"], api_name),
    )
    return _with_possible_times(rows, "API call", dropped)


def synchronisations(tables: ExportTables, labels: TextCodes, dropped: Counter[str]) -> EventRows:
    """Waits of the host, and stream-wait-event operations."""
    columns = ["start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "syncType"]
    read = tables.ints(SYNCHRONIZATION, columns)
    names = np.array([labels.code(SYNC_KINDS.get(number, "synchronize")) for number in range(5)])
    sync_type = read["syncType"]
    rows = make_rows(
        "sync",
        start=read["start"],
        end=read["end"],
        device=read["deviceId"],
        context=read["contextId"],
        stream=_without_none(read["streamId"]),
        process=process_of(read["globalPid"]),
        correlation=correlation_of(read),
        name=names[np.where((sync_type < 0) | (sync_type > 4), 0, sync_type)] if len(sync_type) else absent(0),
    )
    return _with_possible_times(rows, "synchronisation", dropped)


def _without_none(stream: Int64) -> Int64:
    return known_where(stream != NO_STREAM, stream)


def _with_possible_times(rows: EventRows, what: str, dropped: Counter[str]) -> EventRows:
    return drop(rows, what, impossible(rows["start"], rows["end"], on_device=False), dropped)
