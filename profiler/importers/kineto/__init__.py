"""Reads torch.profiler's Chrome-format JSON (Kineto), plain or gzip, of any age, NVIDIA or AMD.

What is kept: kernels, copies, memsets, device-side syncs and host calls, each with its stream, correlation and exact
integer nanoseconds, to the last step. What is left out is counted. `docs/importing.md` says what cannot be known.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from executor.errors import HprofError
from profiler.importers.base import Imported, ImportOptions
from profiler.importers.collectives import mark_collectives, remark
from profiler.importers.kineto.facts import cannot_say, manifest_fields, warnings
from profiler.importers.kineto.numbers import InexactError
from profiler.importers.kineto.rows import RowCollector
from profiler.importers.kineto.segments import segment
from profiler.importers.kineto.source import open_source
from profiler.importers.kineto.stream import EventStream
from profiler.importers.kineto.tables import Launches, events_table, without_strays
from profiler.importers.twice import remark_twice
from profiler.importers.unnamed import segment_unnamed


def read(path: Path, options: ImportOptions) -> Imported:  # noqa: ARG001 - a trace says nothing that they change
    """Read one trace. Raises HprofError where it is no trace, or unpacks to more than a trace can be."""
    with open_source(path) as source, _no_garbage_collection():
        stream, collector = EventStream(source), RowCollector()
        for events in stream:
            try:
                collector.add(events)
            except InexactError:
                stream.text_times = True
                collector.add(stream.reparsed())
    dropped = collector.dropped + stream.dropped
    if collector.n_events == 0 and (stream.is_bare_array or stream.lost or +dropped):
        raise HprofError(
            f'{path} holds JSON, but no trace event (an object with a "ph"); give what torch.profiler\'s '
            "export_chrome_trace wrote."
        )
    rows = without_strays(collector.table(), dropped)
    launches = Launches(rows)
    segments = segment(rows, launches)
    events, n_collectives = mark_collectives(events_table(rows, segments.context, dropped))
    events, undecided = segment_unnamed(events)
    tables = {"events": events, "passes": segments.passes, "ubatches": segments.ubatches}
    tables = {name: table for name, table in tables.items() if name == "events" or table.num_rows}
    return Imported(
        source="kineto",
        tables=tables,
        manifest_fields=manifest_fields(stream.metadata, rows),
        cannot_say=[*cannot_say(tables, collector.not_read), *launches.unanswered(), *undecided],
        dropped=+dropped,
        warnings=[*warnings(events, stream.lost), *remark(n_collectives), *remark_twice(events)],
        default_arm=segments.default_arm,
    )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Parsed JSON holds no cycles, and the collector's walks over it cost more than the parsing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
