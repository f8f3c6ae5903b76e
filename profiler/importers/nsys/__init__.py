"""Nsight Systems exports: SQLite of schema 2.9.1 to 3.28, parquetdir, arrowdir, and `.nsys-rep` through nsys.

`read` opens the export; `build` goes from its tables to the tables of a capture; `facts` tells what is said beside the
rows.
"""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from executor.errors import HprofError
from profiler.importers.base import Imported, ImportOptions, TraceFormat
from profiler.importers.nsys import facts
from profiler.importers.nsys.activities import KERNEL, MEMCPY, RUNTIME
from profiler.importers.nsys.build import SourceSays, build
from profiler.importers.nsys.facts import StreamLabels, stream_facts
from profiler.importers.nsys.folder import FolderTables, holds_tables
from profiler.importers.nsys.nvtx import NVTX
from profiler.importers.nsys.ranges import HprofRanges
from profiler.importers.nsys.recorded import TraceRows
from profiler.importers.nsys.report_file import exported
from profiler.importers.nsys.sqlite import SQLITE_MAGIC, SqliteTables
from profiler.importers.nsys.tables import TID_BITS, ExportTables

_SIGNS: Final = ("META_DATA_EXPORT", "EXPORT_META_DATA", "StringIds", KERNEL, MEMCPY, RUNTIME, NVTX)
_REPORT_ENDINGS: Final = (".nsys-rep", ".qdrep")


def detect(path: Path, head: bytes) -> bool:
    """Whether this is an export (any SQLite file, or a folder of tables) or a report that nsys can export."""
    if path.is_dir():
        return holds_tables(path)
    return head.startswith(SQLITE_MAGIC) or path.suffix.lower() in _REPORT_ENDINGS


def read(path: Path, _options: ImportOptions) -> Imported:
    """Read one export. Raises HprofError for a file that is none, or that is damaged."""
    with ExitStack() as stack:
        if path.suffix.lower() in _REPORT_ENDINGS:
            path = stack.enter_context(exported(path))
        tables: ExportTables = FolderTables(path) if path.is_dir() else SqliteTables(path)
        stack.callback(tables.close)
        if not any(tables.columns(table) for table in _SIGNS):
            raise HprofError(
                f"{path} holds none of the tables of an Nsight Systems export; give the file or folder that "
                "`nsys export` wrote."
            )
        return build(tables, _says(tables))


def _says(tables: ExportTables) -> SourceSays:
    errors, milder = facts.diagnostics(tables)

    def extra(recorded: TraceRows, found: StreamLabels) -> dict[str, Any]:
        return {
            "nsys": {"export": facts.export_facts(tables), "capture": facts.capture_facts(tables)},
            "origin_ns": recorded.origin_ns,
            "nvtx_ranges": len(recorded.ranges),
            "streams": stream_facts(tables, found),
            "profiler_errors": errors,
            "profiler_warnings": milder,
        }

    def cannot_say(recorded: TraceRows, hprof: HprofRanges | None) -> list[str]:
        said = facts.export_cannot_say(tables, recorded, has_passes=hprof is not None)
        return said + facts.remark_diagnostics(milder)

    return SourceSays(
        source="nsys",
        machine=facts.machine_facts(tables),
        created_utc=facts.session_start_utc(tables),
        extra=extra,
        warnings=facts.export_warnings,
        cannot_say=cannot_say,
    )


def sample() -> bytes:
    """An SQLite export of one copy, and of one kernel that it lies beside."""
    database = sqlite3.connect(":memory:")
    database.executescript(
        f"""
        CREATE TABLE StringIds (id INTEGER, value TEXT);
        INSERT INTO StringIds VALUES (1, 'gemm');
        CREATE TABLE {KERNEL} (start, end, deviceId, contextId, streamId, correlationId, globalPid, demangledName);
        INSERT INTO {KERNEL} VALUES (1000, 5000, 0, 1, 7, 1, {1 << 48 | 400 << TID_BITS}, 1);
        CREATE TABLE {MEMCPY} (start, end, deviceId, contextId, streamId, correlationId, globalPid, bytes, copyKind);
        INSERT INTO {MEMCPY} VALUES (2000, 4000, 0, 1, 14, 2, {1 << 48 | 400 << TID_BITS}, 50000, 1);
        """
    )
    return database.serialize()


FORMAT: Final = TraceFormat(
    detect, read, sample, endings=(".sqlite", "_pqtdir", "_arwdir"), converted_endings=_REPORT_ENDINGS
)
