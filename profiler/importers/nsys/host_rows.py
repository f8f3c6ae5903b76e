"""What the host did: CUDA calls (kind `api`) and synchronisations (kind `sync`), as rows."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from profiler.importers.nsys import enums
from profiler.importers.nsys.device_rows import process_of
from profiler.importers.nsys.dropping import drop, impossible_times
from profiler.importers.nsys.rows import ABSENT, Rows, make_rows
from profiler.importers.nsys.strings import Labels, api_name
from profiler.importers.nsys.tables import NULL, Int64, Tables

RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCHRONIZATION: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
CALL_COLUMNS: Final = ("start", "end", "globalTid", "correlationId", "nameId")


def api_calls(tables: Tables, labels: Labels, dropped: Counter[str]) -> Rows:
    """CUDA runtime and driver calls."""
    read = tables.ints(RUNTIME, CALL_COLUMNS)
    rows = make_rows(
        "api",
        start=read["start"],
        end=read["end"],
        process=process_of(read["globalTid"]),
        thread=read["globalTid"],
        correlation=np.where(read["correlationId"] <= 0, NULL, read["correlationId"]),
        name=labels.of_ids(read["nameId"], api_name),
    )
    return _possible(rows, "API call", dropped)


def synchronisations(tables: Tables, labels: Labels, dropped: Counter[str]) -> Rows:
    """Waits of the host, and stream-wait-event operations."""
    columns = ["start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "syncType"]
    read = tables.ints(SYNCHRONIZATION, columns)
    names = np.array([labels.code(enums.SYNC_KINDS.get(number, "synchronize")) for number in range(5)])
    sync_type = read["syncType"]
    rows = make_rows(
        "sync",
        start=read["start"],
        end=read["end"],
        device=read["deviceId"],
        context=read["contextId"],
        stream=_without_none(read["streamId"]),
        process=process_of(read["globalPid"]),
        correlation=np.where(read["correlationId"] <= 0, NULL, read["correlationId"]),
        name=names[np.where((sync_type < 0) | (sync_type > 4), 0, sync_type)] if len(sync_type) else ABSENT,
    )
    return _possible(rows, "synchronisation", dropped)


def _without_none(stream: Int64) -> Int64:
    return np.where(stream == enums.NO_STREAM, NULL, stream)


def _possible(rows: Rows, what: str, dropped: Counter[str]) -> Rows:
    return drop(rows, what, impossible_times(rows["start"], rows["end"], on_device=False), dropped)
