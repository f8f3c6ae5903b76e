"""From the tables of an export to the tables of a capture."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from profiler.importers.base import Imported
from profiler.importers.nsys import device_rows, enums, facts, host_rows, hprof_ranges, named_ranges, remarks, streams
from profiler.importers.nsys.hprof_passes import pass_table, ubatch_table
from profiler.importers.nsys.nvtx import read_ranges
from profiler.importers.nsys.places import Launches, Places, launches_of
from profiler.importers.nsys.project import Projection, Spans, match, project
from profiler.importers.nsys.rows import PHASES, Rows, concatenate, drop_far, event_table, kind_code, time_limits
from profiler.importers.nsys.strings import Labels
from profiler.importers.nsys.tables import NULL, Int64, Tables
from profiler.manifest import Arm


@dataclass(frozen=True, slots=True)
class Recorded:
    """The export's rows, cleaned, with times from the first row on."""

    rows: Rows
    ranges: Rows
    labels: Labels
    launches: Launches
    origin_ns: int  # the export's time of the first row


def build(tables: Tables) -> Imported:
    """Everything that the export holds. Raises HprofError where it cannot be read."""
    dropped: Counter[str] = Counter()
    recorded = record(tables, dropped)
    rows, labels, launches = recorded.rows, recorded.labels, recorded.launches
    hprof = hprof_ranges.hprof_ranges(recorded.ranges, labels.texts)
    found = Imported(source="nsys", tables={}, dropped=dropped, warnings=list(tables.warnings))
    if hprof is not None:
        places = hprof_ranges.places(hprof, rows, launches, labels)
        ubatches = ubatch_table(hprof, projection(recorded, hprof.ubatches.spans))
        found.tables["ubatches"] = ubatches
        found.tables["passes"] = pass_table(hprof, rows, places.pass_id, ubatches)
        arms = dict.fromkeys(name.arm for name in hprof.pass_names())
        found.manifest_fields["arms"] = [Arm(name, requested=name) for name in arms]
    else:
        places = named_ranges.places(recorded.ranges, labels.texts, rows, launches)
    found.tables["events"] = _events(recorded, places)
    found.manifest_fields["machine"] = facts.machine_facts(tables)
    found.manifest_fields["extra"] = _manifest_extra(tables, recorded)
    found.warnings += facts.diagnostics(tables)[0] + remarks.warnings(recorded.rows, labels.texts, hprof)
    found.cannot_say += remarks.cannot_say(tables, rows, launches, has_passes=hprof is not None)
    return found


def record(tables: Tables, dropped: Counter[str]) -> Recorded:
    """Read and clean every row; what is left out is counted in `dropped`."""
    labels = Labels(tables)
    readers = (device_rows.kernels, device_rows.memsets, device_rows.graph_launches, device_rows.copies)
    calls = host_rows.api_calls(tables, labels, dropped)
    syncs = host_rows.synchronisations(tables, labels, dropped)
    rows = concatenate([calls, *(read(tables, labels, dropped) for read in readers), syncs])
    ranges = read_ranges(tables, labels, dropped)
    limits = time_limits(rows["start"] if len(rows) else ranges["start"])
    rows = drop_far(rows, "row", limits, dropped)
    ranges = drop_far(ranges, "NVTX range", limits, dropped)
    origin_ns = int((rows if len(rows) else ranges)["start"].min(initial=np.iinfo(np.int64).max))
    rows, ranges = _shifted(rows, origin_ns), _shifted(ranges, origin_ns)
    return Recorded(rows, ranges, labels, _launches(rows), origin_ns)


def projection(recorded: Recorded, ranges: Spans) -> Projection:
    """The device work that each range launched."""
    rows = recorded.rows
    on_device = np.flatnonzero((rows["device"] != NULL) & (rows["kind"] != kind_code("sync")))
    call = recorded.launches.call[on_device]
    return project(ranges, recorded.launches.calls, call, rows["start"][on_device], rows["end"][on_device])


def _shifted(rows: Rows, origin_ns: int) -> Rows:
    times = {name: rows[name] - origin_ns for name in ("start", "end")}
    return Rows(rows.columns | times)


def _launches(rows: Rows) -> Launches:
    calls = rows.where(rows["kind"] == kind_code("api"))
    call_process = calls["process"]
    row_process = rows["process"]
    processes = np.unique(call_process)
    if len(processes) == 1:
        # Hand-made exports lack globalPid; with one process there is nothing to confuse.
        row_process = np.where(row_process == NULL, processes[0], row_process)
    call = match(row_process, rows["correlation"], call_process, calls["correlation"])
    return launches_of(rows, calls, call)


def _events(recorded: Recorded, places: Places) -> pa.Table:
    rows, texts = recorded.rows, recorded.labels.texts
    stream, stream_texts = streams.stream_labels(rows, places)
    names = ("pass_id", "phase", "ubatch", "layer", "tensor", "whole_bytes")
    extra = {name: getattr(places, name) for name in names} | {"stream": stream}
    shown = Rows(rows.columns | {"process": _pids(rows["process"])})
    return event_table(shown, texts, extra, {"phase": PHASES, "tensor": texts, "stream": stream_texts})


def _pids(process: Int64) -> Int64:
    return np.where(process == NULL, NULL, process & enums.ID_MASK)


def _manifest_extra(tables: Tables, recorded: Recorded) -> dict[str, Any]:
    work = projection(recorded, Spans(*(recorded.ranges[name] for name in ("thread", "start", "end"))))
    owning = work.n_ops > 0
    ranges = {
        "ranges": len(recorded.ranges),
        "ranges_with_device_work": int(np.count_nonzero(owning)),
        "projected_ns": int((work.last_ns[owning] - work.first_ns[owning]).sum()),
    }
    return {
        "nsys": {"export": facts.export_facts(tables), "capture": facts.capture_facts(tables)},
        "origin_ns": recorded.origin_ns,
        "nvtx": ranges,
        "streams": streams.stream_facts(tables, streams.used_streams(recorded.rows)),
        "profiler_warnings": facts.diagnostics(tables)[1],
    }
