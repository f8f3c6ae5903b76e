"""Nsight Systems exports: SQLite of schema 2.9.1 to 3.28, parquetdir, arrowdir, and `.nsys-rep` through nsys.

`read` opens the export; `build` goes from its tables to the tables of a capture: `recorded` makes rows of them,
`ranges` says which pass, ubatch, layer and tensor each belongs to, `facts` tells what is said beside the rows.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from executor.errors import HprofError
from executor.policies import find_traits
from profiler.arithmetic.intervals import Int64
from profiler.importers.absent import is_known, known_where
from profiler.importers.base import Imported, ImportOptions, TraceFormat
from profiler.importers.device_traces import (
    mark_collectives,
    remark_collectives,
    remark_duplicate_rows,
)
from profiler.importers.dropping import remark_overlaps
from profiler.importers.hprof_passes import remark_unrecorded_copies, unrecorded_copies, with_bytes_h2d
from profiler.importers.nsys import facts, ranges
from profiler.importers.nsys.device_rows import KERNEL, MEMCPY
from profiler.importers.nsys.facts import StreamLabels, label_streams, stream_facts
from profiler.importers.nsys.folder import FolderTables, holds_tables
from profiler.importers.nsys.host_rows import RUNTIME
from profiler.importers.nsys.nvtx import NVTX
from profiler.importers.nsys.project import GroupedSpans, Places, Projection, project
from profiler.importers.nsys.ranges import pass_table, ubatch_table
from profiler.importers.nsys.recorded import TraceRows, read_trace_rows
from profiler.importers.nsys.report_file import exported
from profiler.importers.nsys.rows import EventRows, event_table
from profiler.importers.nsys.sqlite import SQLITE_MAGIC, SqliteTables
from profiler.importers.nsys.tables import ID_MASK, TID_BITS, ExportTables
from profiler.importers.unnamed import segment_unnamed
from profiler.manifest import ManifestArm
from profiler.schema import PHASES

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
        return build(tables)


def build(tables: ExportTables) -> Imported:
    """Everything that the export holds. Raises HprofError where it cannot be read."""
    dropped: Counter[str] = Counter()
    recorded = read_trace_rows(tables, dropped)
    hprof = ranges.hprof_ranges(recorded.ranges)
    found = Imported(source="nsys", tables={}, dropped=dropped, warnings=list(tables.warnings))
    passes: pa.Table | None = None
    if hprof is not None:
        places = ranges.places_by_hprof_ranges(hprof, recorded)
        ubatches = ubatch_table(hprof, projection(recorded, hprof.ubatches.spans))
        found.tables["ubatches"] = ubatches
        places.pass_id = pass_id = ranges.pass_of(hprof, recorded)
        passes = pass_table(hprof, recorded.rows, pass_id, ubatches)
        arms = dict.fromkeys(name.arm for name in hprof.pass_names())
        found.manifest_fields["arms"] = [ManifestArm(name, requested=name, traits=find_traits(name)) for name in arms]
    else:
        places = ranges.places_by_range_names(recorded.ranges, recorded.launches)
    streams = label_streams(recorded, places)
    found.tables["events"], n_collectives = mark_collectives(_events(recorded, places, streams))
    if passes is not None:
        found.tables["passes"] = with_bytes_h2d(passes, found.tables["events"])
    n_unrecorded = unrecorded_copies(found.tables["events"])
    found.cannot_say += remark_unrecorded_copies(n_unrecorded)
    found.manifest_fields["machine"] = facts.machine_facts(tables)
    found.manifest_fields["created_utc"] = facts.session_start_utc(tables)
    found.manifest_fields["extra"] = extra = _manifest_extra(tables, recorded, streams)
    extra |= {"unrecorded_copies": n_unrecorded} if n_unrecorded else {}
    if hprof is None:
        found.tables["events"], undecided = segment_unnamed(found.tables["events"])
        found.cannot_say += undecided
    found.warnings += [*facts.export_warnings(recorded, hprof), *remark_collectives(n_collectives)]
    found.warnings += [*remark_duplicate_rows(found.tables["events"]), *remark_overlaps(recorded.n_overlapping)]
    found.cannot_say += facts.export_cannot_say(tables, recorded, has_passes=hprof is not None)
    found.cannot_say += facts.remark_diagnostics(extra["profiler_warnings"])
    return found


def projection(recorded: TraceRows, ranges: GroupedSpans) -> Projection:
    """The device work that each range launched."""
    device, launches = recorded.device_rows, recorded.launches
    return project(ranges, launches.calls, launches.call[recorded.device_slice], device["start"], device["end"])


def _events(recorded: TraceRows, places: Places, found: StreamLabels) -> pa.Table:
    rows, texts = recorded.rows, recorded.labels.texts
    names = ("pass_id", "phase", "ubatch", "layer", "tensor", "whole_bytes")
    known = {name: values for name in names if (values := getattr(places, name)) is not None}
    shown = EventRows(rows.columns | {"process": _pids(rows["process"])})
    labels = {"phase": PHASES, "tensor": texts, "stream": found.labels}
    return event_table(shown, texts, known | {"stream": found.codes}, labels)


def _pids(process: Int64) -> Int64:
    return known_where(is_known(process), process & ID_MASK)


def _manifest_extra(tables: ExportTables, recorded: TraceRows, found: StreamLabels) -> dict[str, Any]:
    errors, milder = facts.diagnostics(tables)
    return {
        "nsys": {"export": facts.export_facts(tables), "capture": facts.capture_facts(tables)},
        "origin_ns": recorded.origin_ns,
        "nvtx_ranges": len(recorded.ranges),
        "streams": stream_facts(tables, found),
        "profiler_errors": errors,
        "profiler_warnings": milder,
    }


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
