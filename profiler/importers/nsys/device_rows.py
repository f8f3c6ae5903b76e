"""What ran on devices: kernels, memsets, copies, graph launches, as rows."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from profiler.importers.nsys import enums
from profiler.importers.nsys.dropping import drop, impossible_times
from profiler.importers.nsys.rows import ABSENT, MEMORIES, Rows, kind_code, make_rows
from profiler.importers.nsys.strings import Labels
from profiler.importers.nsys.tables import NULL, Int64, Tables

KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"

_COMMON: Final = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
COPY_COLUMNS: Final = (*_COMMON, "bytes", "copyKind", "srcKind")
_MAX_DEVICE: Final = 4095


def kernels(tables: Tables, labels: Labels, dropped: Counter[str]) -> Rows:
    """Kernels, with their demangled names (short ones where the export has no others)."""
    columns = kernel_columns(tables)
    read = tables.ints(KERNEL, columns)
    rows = make_rows("compute", **_common(read), name=labels.of_ids(read[columns[-1]]))
    return _possible(rows, "kernel", dropped)


def kernel_columns(tables: Tables) -> tuple[str, ...]:
    """What is read of kernels, the ids of their names last."""
    has_long = "demangledName" in tables.columns(KERNEL)
    return (*_COMMON, "demangledName" if has_long else "shortName")


def memsets(tables: Tables, labels: Labels, dropped: Counter[str]) -> Rows:
    """Memsets: compute rows with detail "memset", as the device's engines are busy with them."""
    read = tables.ints(MEMSET, [*_COMMON, "bytes"])
    memset = labels.code("memset")
    rows = make_rows("compute", **_common(read), bytes=read["bytes"], name=memset, detail=memset)
    return _possible(rows, "memset", dropped)


def graph_launches(tables: Tables, labels: Labels, dropped: Counter[str]) -> Rows:
    """CUDA graphs traced as a whole: one row a launch, and none for the work inside."""
    read = tables.ints(GRAPH, _COMMON)
    rows = make_rows("compute", **_common(read), name=labels.code("CUDA graph"), detail=labels.code("graph"))
    return _possible(rows, "graph launch", dropped)


def copies(tables: Tables, labels: Labels, dropped: Counter[str]) -> Rows:
    """Copies that touch a device. Unified-memory migrations keep apart from the others by detail "uvm"."""
    read = tables.ints(MEMCPY, COPY_COLUMNS)
    oper = np.where((read["copyKind"] < 0) | (read["copyKind"] > max(enums.COPY_KINDS)), 0, read["copyKind"])
    rows = make_rows(
        _by_oper({oper: kind_code(kind) for oper, (kind, _, _) in enums.COPY_KINDS.items()})[oper],
        **_common(read),
        bytes=read["bytes"],
        name=_by_oper({oper: labels.code(name) for oper, (_, name, _) in enums.COPY_KINDS.items()})[oper],
        detail=_by_oper({oper: labels.code(detail) for oper, (_, _, detail) in enums.COPY_KINDS.items() if detail})[
            oper
        ],
        memory=_memory_codes(read["srcKind"]),
    )
    between_hosts = oper == enums.HOST_TO_HOST
    unknown = (rows["kind"] == ABSENT) & ~between_hosts
    kinds = {"unknown copy kind": unknown, "from host to host": between_hosts}
    return _possible(drop(rows, "copy", kinds, dropped), "copy", dropped)


def _common(read: dict[str, Int64]) -> dict[str, Int64]:
    correlation = np.where(read["correlationId"] <= 0, NULL, read["correlationId"])
    return {
        "start": read["start"],
        "end": read["end"],
        "device": read["deviceId"],
        "context": read["contextId"],
        "stream": read["streamId"],
        "correlation": correlation,
        "process": process_of(read["globalPid"]),
    }


def process_of(global_id: Int64) -> Int64:
    """<hw:8><vm:8><pid:24> of a globalPid or globalTid; NULL stays NULL."""
    process, missing = global_id >> enums.TID_BITS, global_id == NULL
    if missing.any():
        process[missing] = NULL
    return process


def _possible(rows: Rows, what: str, dropped: Counter[str]) -> Rows:
    device, size = rows["device"], rows["bytes"]
    reasons = impossible_times(rows["start"], rows["end"], on_device=True) | {
        "no such device number": (device < 0) | (device > _MAX_DEVICE),
        "negative size": (size < 0) & (size != NULL),
    }
    return drop(rows, what, reasons, dropped)


def _by_oper(values: dict[int, int]) -> Int64:
    table = np.full(max(enums.COPY_KINDS) + 1, ABSENT)
    table[list(values)] = list(values.values())
    return table


def _memory_codes(kinds: Int64) -> Int64:
    unknown = max(enums.MEMORY_KINDS) + 1
    table = np.full(unknown + 1, ABSENT)
    for number, memory in enums.MEMORY_KINDS.items():
        table[number] = MEMORIES.index(memory)
    return table[np.where((kinds < 0) | (kinds > unknown), unknown, kinds)]
