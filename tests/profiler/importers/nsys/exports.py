"""Small exports with known answers. A table is a list of rows, a row a dict; what no row names does not exist."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from profiler.importers import read_file
from profiler.importers.base import Imported

Row = dict[str, Any]
Tables = dict[str, list[Row]]

PID, TID = 111, 111
GLOBAL_PID = (1 << 48) | (PID << 24)
GLOBAL_TID = GLOBAL_PID | TID
KERNEL, MEMCPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET, GRAPH = "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME, SYNC = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
DEVICE_WAIT = 6
STRINGS = {
    1: "matmul(float*)",
    2: "matmul",
    3: "cudaLaunchKernel_v7000",
    4: "cudaMemcpyAsync_v3020",
    5: "cudaMemcpy",
    DEVICE_WAIT: "cudaDeviceSynchronize_v3020",
}


def device_row(start: int | None, end: int | None, correlation: int = 0, **changes: Any) -> Row:
    """What kernels, copies, memsets and graph launches have in common."""
    where = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": GLOBAL_PID}
    return {"start": start, "end": end, "correlationId": correlation} | where | changes


def kernel(start: int | None, end: int | None, correlation: int = 0, **changes: Any) -> Row:
    """A kernel called `matmul(float*)`."""
    return device_row(start, end, correlation, demangledName=1, shortName=2) | changes


def copy(start: int | None, end: int | None, correlation: int = 0, **changes: Any) -> Row:
    """A pinned H2D copy of 1000 bytes."""
    kinds = {"bytes": 1000, "copyKind": 1, "srcKind": 1, "dstKind": 2}
    return device_row(start, end, correlation) | kinds | changes


def call(start: int | None, end: int | None, correlation: int = 0, **changes: Any) -> Row:
    """A call of cudaLaunchKernel."""
    ids = {"globalTid": GLOBAL_TID, "correlationId": correlation, "nameId": 3, "eventClass": 0, "returnValue": 0}
    return {"start": start, "end": end} | ids | changes


def nvtx(start: int | None, end: int | None, text: str | None, **changes: Any) -> Row:
    """A push/pop range of the default domain."""
    row = {"start": start, "end": end, "eventType": 59, "text": text, "textId": None}
    return row | {"globalTid": GLOBAL_TID, "endGlobalTid": None, "domainId": 0} | changes


def domain(number: int, name: str, **changes: Any) -> Row:
    """The row that gives a domain its name."""
    return nvtx(0, None, name, eventType=75, domainId=number) | changes


def write_export(path: Path, tables: Mapping[str, Sequence[Row]], types: Mapping[str, str] | None = None) -> Path:
    """A SQLite file of the tables, with StringIds and a metadata table unless given; an empty list is no table."""
    complete: dict[str, Sequence[Row]] = {
        "StringIds": [{"id": number, "value": text} for number, text in STRINGS.items()],
        "META_DATA_EXPORT": [{"name": "EXPORT_SCHEMA_VERSION", "value": "3.25.0"}],
    }
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.execute("PRAGMA synchronous=OFF")
    for table, rows in (complete | dict(tables)).items():
        if not rows:
            continue
        names = list(dict.fromkeys(name for row in rows for name in row))
        columns = ", ".join(f'"{name}" {(types or {}).get(name, _type(rows, name))}' for name in names)
        database.execute(f'CREATE TABLE "{table}" ({columns})')
        values = [[row.get(name) for name in names] for row in rows]
        database.executemany(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(names))})', values)
    database.commit()
    database.close()
    return path


def _type(rows: Sequence[Row], name: str) -> str:
    return "TEXT" if any(isinstance(row.get(name), str) for row in rows) else "INTEGER"


def imported(path: Path, tables: Mapping[str, Sequence[Row]]) -> Imported:
    """The export, written and read."""
    return read_file(write_export(path / "export.sqlite", tables))


def events(found: Imported, *names: str) -> list[Row]:
    """Some columns of the events, by start."""
    rows: list[Row] = found.tables["events"].sort_by("t_start").select(list(names)).to_pylist()
    return rows
