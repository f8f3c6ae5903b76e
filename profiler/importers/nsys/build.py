"""From the tables of an export to the tables of a capture."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

from profiler.importers.base import Imported
from profiler.importers.collectives import mark_collectives, remark
from profiler.importers.nsys import enums, facts, hprof_places, hprof_ranges, named_ranges, remarks
from profiler.importers.nsys.event_table import event_table
from profiler.importers.nsys.hprof_passes import pass_table, ubatch_table
from profiler.importers.nsys.places import Places
from profiler.importers.nsys.project import Projection, Spans, project
from profiler.importers.nsys.recorded import Recorded, record
from profiler.importers.nsys.rows import PHASES, Rows
from profiler.importers.nsys.streams import Streams, label_streams, stream_facts
from profiler.importers.nsys.tables import NULL, Int64, Tables
from profiler.importers.twice import remark_twice
from profiler.importers.unnamed import segment_unnamed
from profiler.manifest import Arm


def build(tables: Tables) -> Imported:
    """Everything that the export holds. Raises HprofError where it cannot be read."""
    dropped: Counter[str] = Counter()
    recorded = record(tables, dropped)
    hprof = hprof_ranges.hprof_ranges(recorded.ranges)
    found = Imported(source="nsys", tables={}, dropped=dropped, warnings=list(tables.warnings))
    if hprof is not None:
        places = hprof_places.places(hprof, recorded)
        ubatches = ubatch_table(hprof, projection(recorded, hprof.ubatches.spans))
        found.tables["ubatches"] = ubatches
        places.pass_id = pass_id = hprof_places.pass_of(hprof, recorded)
        found.tables["passes"] = pass_table(hprof, recorded.rows, pass_id, ubatches)
        arms = dict.fromkeys(name.arm for name in hprof.pass_names())
        found.manifest_fields["arms"] = [Arm(name, requested=name) for name in arms]
    else:
        places = named_ranges.places(recorded.ranges, recorded.launches)
    streams = label_streams(recorded, places)
    found.tables["events"], n_collectives = mark_collectives(_events(recorded, places, streams))
    found.manifest_fields["machine"] = facts.machine_facts(tables)
    found.manifest_fields["created_utc"] = facts.created(tables)
    found.manifest_fields["extra"] = _manifest_extra(tables, recorded, streams)
    if hprof is None:
        found.tables["events"], undecided = segment_unnamed(found.tables["events"])
        found.cannot_say += undecided
    found.warnings += [*remarks.warnings(recorded, hprof), *remark(n_collectives)]
    found.warnings += remark_twice(found.tables["events"])
    found.cannot_say += remarks.cannot_say(tables, recorded, has_passes=hprof is not None)
    return found


def projection(recorded: Recorded, ranges: Spans) -> Projection:
    """The device work that each range launched."""
    device, launches = recorded.device_rows, recorded.launches
    return project(ranges, launches.calls, launches.call[recorded.device_slice], device["start"], device["end"])


def _events(recorded: Recorded, places: Places, found: Streams) -> pa.Table:
    rows, texts = recorded.rows, recorded.labels.texts
    names = ("pass_id", "phase", "ubatch", "layer", "tensor", "whole_bytes")
    known = {name: values for name in names if (values := getattr(places, name)) is not None}
    shown = Rows(rows.columns | {"process": _pids(rows["process"])})
    labels = {"phase": PHASES, "tensor": texts, "stream": found.labels}
    return event_table(shown, texts, known | {"stream": found.codes}, labels)


def _pids(process: Int64) -> Int64:
    return np.where(process == NULL, NULL, process & enums.ID_MASK)


def _manifest_extra(tables: Tables, recorded: Recorded, found: Streams) -> dict[str, Any]:
    errors, milder = facts.diagnostics(tables)
    return {
        "nsys": {"export": facts.export_facts(tables), "capture": facts.capture_facts(tables)},
        "origin_ns": recorded.origin_ns,
        "nvtx_ranges": len(recorded.ranges),
        "streams": stream_facts(tables, found),
        "profiler_errors": errors,
        "profiler_warnings": milder,
    }
