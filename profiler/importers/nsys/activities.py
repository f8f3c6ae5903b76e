"""Rows of what devices and the host did: kernels, memsets, graph launches and copies; CUDA calls and waits.

One function a table of the export.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from executor.arrays import Int64
from profiler.importers.absent import absent, is_absent, is_known, known_where
from profiler.importers.nsys.rows import (
    EventRows,
    TextCodes,
    api_name,
    correlation_of,
    drop,
    impossible,
    kind_code,
    make_rows,
    process_of,
)
from profiler.importers.nsys.tables import (
    COPY_KINDS,
    HOST_TO_HOST,
    MEMORY_KINDS,
    NO_STREAM,
    SYNC_KINDS,
    ExportTables,
)
from profiler.schema import MEMORIES

KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCHRONIZATION: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"

ON_DEVICE: Final = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
CALL_COLUMNS: Final = ("start", "end", "globalTid", "correlationId", "nameId")
COPY_COLUMNS: Final = (*ON_DEVICE, "bytes", "copyKind", "srcKind")
_MAX_DEVICE: Final = 4095


def kernels(tables: ExportTables, labels: TextCodes, dropped: Counter[str]) -> EventRows:
    """Kernels, with their demangled names (short ones where the export has no others)."""
    columns = kernel_columns(tables)
    read = tables.ints(KERNEL, columns)
    rows = make_rows("compute", **_common(read), name=labels.of_ids(read[columns[-1]]))
    return _possible_on_device(rows, "kernel", dropped)


def kernel_columns(tables: ExportTables) -> tuple[str, ...]:
    """What is read of kernels, the ids of their names last."""
    has_long = "demangledName" in tables.columns(KERNEL)
    return (*ON_DEVICE, "demangledName" if has_long else "shortName")


def memsets(tables: ExportTables, labels: TextCodes, dropped: Counter[str]) -> EventRows:
    """Memsets: compute rows with detail "memset", as the device's engines are busy with them."""
    read = tables.ints(MEMSET, [*ON_DEVICE, "bytes"])
    memset = labels.code("memset")
    rows = make_rows("compute", **_common(read), bytes=read["bytes"], name=memset, detail=memset)
    return _possible_on_device(rows, "memset", dropped)


def graph_launches(tables: ExportTables, labels: TextCodes, dropped: Counter[str]) -> EventRows:
    """CUDA graphs traced as a whole: one row a launch, and none for the work inside."""
    read = tables.ints(GRAPH, ON_DEVICE)
    rows = make_rows("compute", **_common(read), name=labels.code("CUDA graph"), detail=labels.code("graph"))
    return _possible_on_device(rows, "graph launch", dropped)


def copies(tables: ExportTables, labels: TextCodes, dropped: Counter[str]) -> EventRows:
    """Copies that touch a device. Unified-memory migrations keep apart from the others by detail "uvm"."""
    read = tables.ints(MEMCPY, COPY_COLUMNS)
    oper = np.where((read["copyKind"] < 0) | (read["copyKind"] > max(COPY_KINDS)), 0, read["copyKind"])
    rows = make_rows(
        _by_oper({oper: kind_code(kind) for oper, (kind, _, _) in COPY_KINDS.items()})[oper],
        **_common(read),
        bytes=read["bytes"],
        name=_by_oper({oper: labels.code(name) for oper, (_, name, _) in COPY_KINDS.items()})[oper],
        detail=_by_oper({oper: labels.code(detail) for oper, (_, _, detail) in COPY_KINDS.items() if detail})[oper],
        memory=_memory_codes(read["srcKind"]),
    )
    between_hosts = oper == HOST_TO_HOST
    unknown = is_absent(rows["kind"]) & ~between_hosts
    kinds = {"unknown copy kind": unknown, "from host to host": between_hosts}
    return _possible_on_device(drop(rows, "copy", kinds, dropped), "copy", dropped)


def _common(read: dict[str, Int64]) -> dict[str, Int64]:
    return {
        "start": read["start"],
        "end": read["end"],
        "device": read["deviceId"],
        "context": read["contextId"],
        "stream": read["streamId"],
        "correlation": correlation_of(read),
        "process": process_of(read["globalPid"]),
    }


def _possible_on_device(rows: EventRows, what: str, dropped: Counter[str]) -> EventRows:
    device, size = rows["device"], rows["bytes"]
    names_devices = not is_absent(device).all()  # a table without the column is of one device, of no known number
    reasons = impossible(rows["start"], rows["end"], on_device=True) | {
        "no such device number": ((device < 0) | (device > _MAX_DEVICE)) & names_devices,
        "negative size": (size < 0) & is_known(size),
    }
    return drop(rows, what, reasons, dropped)


def _by_oper(values: dict[int, int]) -> Int64:
    table = absent(max(COPY_KINDS) + 1)
    table[list(values)] = list(values.values())
    return table


def _memory_codes(kinds: Int64) -> Int64:
    unknown = max(MEMORY_KINDS) + 1
    table = absent(unknown + 1)
    for number, memory in MEMORY_KINDS.items():
        table[number] = MEMORIES.index(memory)
    return table[np.where((kinds < 0) | (kinds > unknown), unknown, kinds)]


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
