"""Reads the rows of an export: device work, calls of the host, synchronisations and NVTX ranges.

`activities` and `nvtx` read the tables; `read_trace_rows` puts their rows on one clock (host calls first,
then device work, then waits), joins device work to the calls that launched it, and counts what is left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from executor.arrays import Flags, Int64
from profiler.arithmetic.groups import group_by
from profiler.importers.absent import is_absent, is_known, known_where
from profiler.importers.dropping import (
    DEVICE_WAITS,
    FAR_FROM_LAUNCH,
    OUTLASTS_WAIT,
    OVERRUNS,
    LaunchedRows,
    Waits,
    far_from_launch,
    far_times,
    kept_rows,
    outlasting,
    overrunning,
    time_limits,
)
from profiler.importers.nsys.activities import (
    CALL_COLUMNS,
    COPY_COLUMNS,
    KERNEL,
    MEMCPY,
    RUNTIME,
    api_calls,
    copies,
    graph_launches,
    kernel_columns,
    kernels,
    memsets,
    synchronisations,
)
from profiler.importers.nsys.nvtx import NVTX, NVTX_COLUMNS, NVTX_TEXT, NvtxRanges, read_ranges
from profiler.importers.nsys.project import GroupedSpans, LaunchingCalls
from profiler.importers.nsys.rows import EventRows, StreamLines, TextCodes, concatenate, distinct_streams, drop, matched
from profiler.importers.nsys.tables import (
    ExportTables,
)


@dataclass(frozen=True, slots=True)
class TraceRows:
    """Everything that happened. Times count from `origin_ns`, the export's time of the first row."""

    rows: EventRows
    n_calls: int  # rows[:n_calls] are CUDA calls
    n_device: int  # the next n_device rows ran on devices; the rest are synchronisations
    ranges: NvtxRanges
    labels: TextCodes
    launches: LaunchingCalls
    streams: StreamLines  # of rows[n_calls:]
    origin_ns: int
    has_work: Flags  # of each call: whether the export has device work of it, also work that was left out
    n_overlapping: int  # device rows that overlap on streams that are not serial, and stay

    @property
    def device_slice(self) -> slice:
        """Where the device work lies in `rows`."""
        return slice(self.n_calls, self.n_calls + self.n_device)

    @property
    def device_rows(self) -> EventRows:
        """Kernels, memsets, graph launches and copies."""
        return self.rows.part(self.device_slice)


def read_trace_rows(tables: ExportTables, dropped: Counter[str]) -> TraceRows:
    """Read and clean every row; what is left out is counted in `dropped`."""
    _expect(tables)
    labels = TextCodes(tables)
    calls = api_calls(tables, labels, dropped)
    readers = (kernels, memsets, graph_launches, copies)
    device = [read(tables, labels, dropped) for read in readers]
    syncs = synchronisations(tables, labels, dropped)
    ranges = read_ranges(tables, labels, dropped)
    starts = np.concatenate([part["start"] for part in (calls, *device, syncs)])
    limits = time_limits(starts if len(starts) else ranges.spans.start)
    calls, *device, syncs = (
        drop(part, "row", far_times(part["start"], limits), dropped) for part in (calls, *device, syncs)
    )
    ranges = drop(ranges, "NVTX range", far_times(ranges.spans.start, limits), dropped)
    n_syncs = len(syncs)
    rows = concatenate([calls, *device, syncs])
    calls = rows.part(slice(len(calls)))
    del device, syncs  # `rows` has them: of 10 M rows they would take another GB
    call = np.concatenate([np.arange(len(calls)), _calls_of(rows.part(slice(len(calls), None)), calls)])
    device_slice = slice(len(calls), len(rows) - n_syncs)
    has_work = np.zeros(len(calls), np.bool_)
    has_work[call[device_slice][is_known(call[device_slice])]] = True
    streams = distinct_streams(rows.part(slice(len(calls), None)))
    kept, n_overlapping = _credible(rows.part(device_slice), streams, call[device_slice], calls, labels, dropped)
    if not kept.all():
        every = np.ones(len(rows), np.bool_)
        every[device_slice] = kept
        rows, call = rows.where(every), call[every]
        streams = distinct_streams(rows.part(slice(len(calls), None)))
    first = rows["start"] if len(rows) else ranges.spans.start
    origin_ns = int(first.min()) if len(first) else 0
    spans = GroupedSpans(calls["thread"], calls["start"] - origin_ns, calls["end"] - origin_ns)
    return TraceRows(
        rows=rows.shifted(-origin_ns),
        n_calls=len(calls),
        n_device=int(np.count_nonzero(kept)),
        ranges=ranges.shifted(-origin_ns),
        labels=labels,
        launches=LaunchingCalls(spans, call),
        streams=streams,
        origin_ns=origin_ns,
        has_work=has_work,
        n_overlapping=n_overlapping,
    )


def _expect(tables: ExportTables) -> None:
    """The large tables, in the order in which they are asked for."""
    tables.expect(RUNTIME, CALL_COLUMNS)
    tables.expect(KERNEL, kernel_columns(tables))
    tables.expect(MEMCPY, COPY_COLUMNS)
    tables.expect(NVTX, NVTX_COLUMNS)
    tables.expect(NVTX, [NVTX_TEXT])


def _calls_of(rows: EventRows, calls: EventRows) -> Int64:
    """For each row the call that launched it, if any."""
    process = rows["process"]
    if len(calls) and (calls["process"] == calls["process"][0]).all():
        # Hand-made exports lack globalPid; with one process there is nothing to confuse.
        process = np.where(is_absent(process), calls["process"][0], process)
    return matched(process, rows["correlation"], calls["process"], calls["correlation"])


def _credible(
    device: EventRows, streams: StreamLines, call: Int64, calls: EventRows, labels: TextCodes, dropped: Counter[str]
) -> tuple[Flags, int]:
    """The device rows whose times agree with their launches and streams, and how many overlap on no serial stream.

    streams: of the device rows, and of others after them.
    """
    is_far = np.zeros(len(device), np.bool_)
    launched = np.flatnonzero(is_known(call))
    is_far[launched] = far_from_launch(device["start"][launched], calls["start"][call[launched]])
    # Migrations and graphs that were recorded as a whole are no work in a stream's order.
    is_apart = is_far | is_absent(device["stream"])
    for detail in ("uvm", "graph"):
        is_apart |= device["detail"] == labels.code(detail)
    stream = known_where(~is_apart, streams.line[: len(device)])
    overruns, n_overlapping = overrunning(stream, device["start"], device["end"], device["correlation"])
    outlasts = np.zeros(len(device), np.bool_)
    judged = np.flatnonzero(is_known(call) & is_known(stream) & ~overruns)
    outlasts[judged] = _outlasting(device, stream, call, calls, labels, judged)
    reasons = {FAR_FROM_LAUNCH: is_far, OVERRUNS: overruns, OUTLASTS_WAIT: outlasts}
    return kept_rows("device row", reasons, dropped), n_overlapping


def _outlasting(
    device: EventRows, stream: Int64, call: Int64, calls: EventRows, labels: TextCodes, judged: Int64
) -> Flags:
    """Which of the device rows `judged` end after their process had waited for all it had issued."""
    waits = np.flatnonzero(np.isin(calls["name"], [labels.code(name) for name in DEVICE_WAITS]))
    launched = call[judged]
    rows = LaunchedRows(
        stream=stream[judged],
        context=group_by({name: device[name][judged] for name in ("device", "context")}).of_row,
        process=calls["process"][launched],
        start=device["start"][judged],
        end=device["end"][judged],
        launched=calls["end"][launched],
    )
    return outlasting(rows, Waits(calls["process"][waits], calls["start"][waits], calls["end"][waits]))
