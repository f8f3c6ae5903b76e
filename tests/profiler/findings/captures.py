"""Hand-made captures for the rules, on a millisecond grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from profiler.findings import CopyAnalysis, Finding, find_in
from profiler.findings.analysis import Columns
from profiler.manifest import Manifest
from profiler.schema import TABLES
from profiler.storage.writer import conform

MS = 10**6
MB = 10**6
Row = dict[str, Any]


def row(kind: str, start_ms: float, end_ms: float, stream: str | None = "7", **more: Any) -> Row:
    """An event of GPU 0 of process 1."""
    times = {"t_start": round(start_ms * MS), "t_end": round(end_ms * MS)}
    return {"kind": kind, "stream": stream, "name": kind, "process": 1, "device": 0} | times | more


def copy(start_ms: float, end_ms: float, stream: str = "14", **more: Any) -> Row:
    """A pinned H2D copy at 25 GB/s."""
    n_bytes = round((end_ms - start_ms) * 25 * MB)
    return row("h2d", start_ms, end_ms, stream, bytes=n_bytes, source_memory="pinned") | more


def kernel(start_ms: float, end_ms: float, stream: str | None = "7", **more: Any) -> Row:
    """A kernel."""
    return row("compute", start_ms, end_ms, stream, **more)


def api(start_ms: float, end_ms: float, name: str, correlation: int) -> Row:
    """A call of the host."""
    return row("api", start_ms, end_ms, "thread 1", name=name, correlation_id=correlation, device=None)


def view(rows: Sequence[Row], passes: Sequence[Row] = (), **manifest: Any) -> CopyAnalysis:
    """The rows laid out for the rules (source nsys unless given)."""
    tables = {name: _table(name, given) for name, given in (("events", rows), ("passes", passes))}
    passes, told = tables["passes"], Manifest(**({"source": "nsys"} | manifest))
    return CopyAnalysis(Columns.of(tables["events"], passes, told), passes, told)


def findings(rows: Sequence[Row], passes: Sequence[Row] = (), **manifest: Any) -> dict[str, Finding]:
    """The findings of the rows, by rule; at most one each."""
    found = find_in(view(rows, passes, **manifest))
    assert len({finding.rule for finding in found}) == len(found)
    return {finding.rule: finding for finding in found}


def _table(name: str, rows: Sequence[Row]) -> pa.Table:
    return conform(name, {column: [row.get(column) for row in rows] for column in TABLES[name].names})
