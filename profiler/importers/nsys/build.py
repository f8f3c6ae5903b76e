"""From the tables of a device trace to the tables of a capture, whoever recorded: Nsight Systems, or `hprof record`.

`recorded` makes rows of the tables, `ranges` says which pass, ubatch, layer and tensor each belongs to. What a tool
says beside its rows, and what it cannot say, comes as `SourceSays`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from executor.arrays import Int64
from executor.policies import find_traits
from profiler.importers.absent import is_known, known_where
from profiler.importers.base import Imported
from profiler.importers.device_traces import (
    mark_collectives,
    remark_collectives,
    remark_duplicate_rows,
)
from profiler.importers.dropping import remark_overlaps
from profiler.importers.hprof_passes import remark_unrecorded_copies, unrecorded_copies, with_bytes_h2d
from profiler.importers.nsys import ranges
from profiler.importers.nsys.facts import StreamLabels, label_streams
from profiler.importers.nsys.project import GroupedSpans, Places, Projection, project
from profiler.importers.nsys.ranges import HprofRanges, pass_table, ubatch_table
from profiler.importers.nsys.recorded import TraceRows, read_trace_rows
from profiler.importers.nsys.rows import EventRows, event_table
from profiler.importers.nsys.tables import ID_MASK, ExportTables
from profiler.importers.unnamed import segment_unnamed
from profiler.manifest import ManifestArm
from profiler.schema import PHASES


@dataclass(frozen=True, slots=True)
class SourceSays:
    """What the tool that recorded says beside its rows; the functions see the rows first."""

    source: str  # the manifest's
    machine: dict[str, Any]
    created_utc: str
    extra: Callable[[TraceRows, StreamLabels], dict[str, Any]]  # of the manifest
    warnings: Callable[[TraceRows, HprofRanges | None], list[str]]
    cannot_say: Callable[[TraceRows, HprofRanges | None], list[str]]


def build(tables: ExportTables, says: SourceSays) -> Imported:
    """Everything that the tables hold. Raises HprofError where they cannot be read."""
    dropped: Counter[str] = Counter()
    recorded = read_trace_rows(tables, dropped)
    hprof = ranges.hprof_ranges(recorded.ranges)
    found = Imported(source=says.source, tables={}, dropped=dropped, warnings=list(tables.warnings))
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
    if passes is not None:  # where no device did anything, nobody knows what was copied
        found.tables["passes"] = with_bytes_h2d(passes, found.tables["events"]) if recorded.n_device else passes
    n_unrecorded = unrecorded_copies(found.tables["events"])
    found.cannot_say += remark_unrecorded_copies(n_unrecorded)
    found.manifest_fields |= {"machine": says.machine, "created_utc": says.created_utc}
    found.manifest_fields["extra"] = extra = says.extra(recorded, streams)
    extra |= {"unrecorded_copies": n_unrecorded} if n_unrecorded else {}
    if hprof is None:
        found.tables["events"], undecided = segment_unnamed(found.tables["events"])
        found.cannot_say += undecided
    found.warnings += [*says.warnings(recorded, hprof), *remark_collectives(n_collectives)]
    found.warnings += [*remark_duplicate_rows(found.tables["events"]), *remark_overlaps(recorded.n_overlapping)]
    found.cannot_say += says.cannot_say(recorded, hprof)
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
