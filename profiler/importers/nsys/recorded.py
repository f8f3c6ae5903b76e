"""The rows of an export, cleaned and on one clock: calls of the host first, then device work, then waits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from profiler.arithmetic.joins import match
from profiler.importers.nsys import device_rows, host_rows
from profiler.importers.nsys.dropping import drop, far_times, time_limits
from profiler.importers.nsys.nvtx import COLUMNS, NVTX, TEXT, Ranges, read_ranges
from profiler.importers.nsys.places import Launches
from profiler.importers.nsys.project import Spans
from profiler.importers.nsys.rows import Rows, concatenate
from profiler.importers.nsys.strings import Labels
from profiler.importers.nsys.tables import NULL, Tables


@dataclass(frozen=True, slots=True)
class Recorded:
    """Everything that happened. Times count from `origin_ns`, the export's time of the first row."""

    rows: Rows
    n_calls: int  # rows[:n_calls] are CUDA calls
    n_device: int  # the next n_device rows ran on devices; the rest are synchronisations
    ranges: Ranges
    labels: Labels
    launches: Launches
    origin_ns: int

    @property
    def device_slice(self) -> slice:
        """Where the device work lies in `rows`."""
        return slice(self.n_calls, self.n_calls + self.n_device)

    @property
    def device_rows(self) -> Rows:
        """Kernels, memsets, graph launches and copies."""
        return self.rows.part(self.device_slice)


def record(tables: Tables, dropped: Counter[str]) -> Recorded:
    """Read and clean every row; what is left out is counted in `dropped`."""
    _expect(tables)
    labels = Labels(tables)
    calls = host_rows.api_calls(tables, labels, dropped)
    readers = (device_rows.kernels, device_rows.memsets, device_rows.graph_launches, device_rows.copies)
    device = [read(tables, labels, dropped) for read in readers]
    syncs = host_rows.synchronisations(tables, labels, dropped)
    ranges = read_ranges(tables, labels, dropped)
    starts = np.concatenate([part["start"] for part in (calls, *device, syncs)])
    limits = time_limits(starts if len(starts) else ranges.spans.start)
    calls, *device, syncs = (
        drop(part, "row", far_times(part["start"], limits), dropped) for part in (calls, *device, syncs)
    )
    ranges = drop(ranges, "NVTX range", far_times(ranges.spans.start, limits), dropped)
    rows = concatenate([calls, *device, syncs])
    first = rows["start"] if len(rows) else ranges.spans.start
    origin_ns = int(first.min()) if len(first) else 0
    return Recorded(
        rows=rows.shifted(-origin_ns),
        n_calls=len(calls),
        n_device=sum(map(len, device)),
        ranges=ranges.shifted(-origin_ns),
        labels=labels,
        launches=_launches(rows, calls, origin_ns),
        origin_ns=origin_ns,
    )


def _expect(tables: Tables) -> None:
    """The large tables, in the order in which they are asked for."""
    tables.expect(host_rows.RUNTIME, host_rows.CALL_COLUMNS)
    tables.expect(device_rows.KERNEL, device_rows.kernel_columns(tables))
    tables.expect(device_rows.MEMCPY, device_rows.COPY_COLUMNS)
    tables.expect(NVTX, COLUMNS)
    tables.expect(NVTX, [TEXT])


def _launches(rows: Rows, calls: Rows, origin_ns: int) -> Launches:
    others = slice(len(calls), len(rows))
    process = rows["process"][others]
    if len(calls) and (calls["process"] == calls["process"][0]).all():
        # Hand-made exports lack globalPid; with one process there is nothing to confuse.
        process = np.where(process == NULL, calls["process"][0], process)
    call = match(process, rows["correlation"][others], calls["process"], calls["correlation"])
    spans = Spans(calls["thread"], calls["start"] - origin_ns, calls["end"] - origin_ns)
    return Launches(spans, np.concatenate([np.arange(len(calls)), call]))
