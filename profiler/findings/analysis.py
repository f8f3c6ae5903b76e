"""The copies and the computing of a capture laid out for the rules: all passes on one axis, figures of each device
in one arm and cell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profiler.arithmetic.groups import distinct, group_by, sum_by
from profiler.arithmetic.intervals import MAX_ABS_NS, Int64, Intervals, Line, covered_length, union
from profiler.findings.finding import ABSENT, SIZES, Judged, Severity, Subjects
from profiler.manifest import Manifest
from profiler.schema import UNCOUNTED

if TYPE_CHECKING:
    from profiler.capture import Capture

_INTS: Final = ("pass_id", "process", "device", "bytes", "correlation_id", "waits_for")
_COMPUTE_STREAM_SHARE: Final = 0.10  # of a device's compute time; less is a stray kernel on a copy stream
_LABELS: Final = ("stream", "kind", "name", "tensor", "detail", "source_memory")
COLUMNS: Final = (*_INTS, *_LABELS, "t_start", "t_end")
WORK_KINDS: Final = ("h2d", "d2h", "d2d", "compute", "cpu_compute")  # the host may compute for the device


@dataclass(frozen=True, slots=True)
class WorkRows:
    """Some rows of the events, in parallel; `start` and `end` are positions on the view's one axis."""

    row: Int64  # index into the view's columns
    context: Int64
    group: Int64
    start: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.row)

    def where(self, mask: Any) -> WorkRows:
        """Only the rows that `mask` keeps."""
        return WorkRows(*(getattr(self, name)[mask] for name in ("row", "context", "group", "start", "end")))

    @property
    def length(self) -> Int64:
        """Durations in ns."""
        return self.end - self.start


class _IntColumns(dict[str, Int64]):
    """The integer columns of a table, made when a rule first looks at them."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __missing__(self, name: str) -> Int64:
        self[name] = _ints(self._table[name], MAX_ABS_NS if name in ("t_start", "t_end") else ABSENT)
        return self[name]


class CopyAnalysis:
    """Columns as numpy arrays, nulls and unknown labels as ABSENT, and what several rules need of them.

    Warm-up passes are left out. A context is (pass, process, device): passes may have clocks of their own, so
    each context gets its own stretch of one axis, and one union serves them all. A group is an arm's cell on a device.
    """

    def __init__(self, events: pa.Table, passes: pa.Table, manifest: Manifest) -> None:
        self.manifest = manifest
        events = _without_warmups(events, passes)
        self.ints = _IntColumns(events)
        self.labels = {name: _labels(events[name]) for name in _LABELS}
        start, end = self.ints["t_start"], self.ints["t_end"]
        possible = (end >= start) & (np.abs(start) < MAX_ABS_NS) & (np.abs(end) < MAX_ABS_NS)
        self._is_work = possible & self.is_any("kind", WORK_KINDS)
        work = slice(None) if self._is_work.all() else self._is_work
        contexts = group_by({name: self.ints[name][work] for name in ("pass_id", "process", "device")})
        self.groups = Subjects(contexts.keys, passes, "GPU" if self.is_gpu else "device")
        self.context_of_row = np.full(len(start), ABSENT)
        self.context_of_row[work] = contexts.of_row
        self._line = Line(contexts.of_row, start[work], end[work], len(self.groups.of_context))

    @classmethod
    def of(cls, capture: Capture) -> CopyAnalysis:
        """The view of a whole capture."""
        passes = capture.table("passes", ["pass_id", "arm", "warmup", *SIZES])
        return cls(capture.table("events", list(COLUMNS)), passes, capture.manifest)

    @property
    def is_gpu(self) -> bool:
        """Whether the devices are GPUs, so that CUDA's means are to the point: not hprof's own `cpu` and `sim`."""
        return self.manifest.source != "hprof" or self.manifest.machine.get("device") not in ("cpu", "sim")

    def codes(self, name: str) -> Int64:
        """A label column as codes."""
        return self.labels[name][0]

    def code(self, name: str, text: str) -> int:
        """The code of one label; one that no row has where the label does not occur."""
        texts = self.labels[name][1]
        return texts.index(text) if text in texts else ABSENT - 1

    def is_any(self, name: str, texts: Collection[str]) -> npt.NDArray[np.bool_]:
        """Which rows have one of these labels."""
        codes, known = self.labels[name]
        is_one: npt.NDArray[np.bool_] = np.array([text in texts for text in known] + [False], np.bool_)[codes]
        return is_one

    @cached_property
    def scope(self) -> Int64:
        """A number for each (pass, process) of every row: correlation ids are its own."""
        processes, process = distinct(self.ints["process"])
        return distinct(self.ints["pass_id"])[1] * len(processes) + process

    def rows(self, mask: Any) -> WorkRows:
        """Rows of work that `mask` (over all rows) keeps."""
        row = np.flatnonzero(mask & self._is_work)
        context = self.context_of_row[row]
        start, end = (self._line.place(context, self.ints[name][row]) for name in ("t_start", "t_end"))
        return WorkRows(row, context, self.groups.of_context[context], start, end)

    @cached_property
    def h2d(self) -> WorkRows:
        """Explicit host to device copies (no unified-memory migrations)."""
        return self.rows(self.is_any("kind", ["h2d"]) & ~self.is_any("detail", ["uvm"]))

    @cached_property
    def weights(self) -> WorkRows:
        """The H2D copies that are known to carry weights; all of them where the source names no tensors."""
        is_named = self.codes("tensor")[self.h2d.row] != ABSENT
        return self.h2d.where(is_named) if is_named.any() and not is_named.all() else self.h2d

    @cached_property
    def in_line(self) -> WorkRows:
        """The weights' copies on streams that also compute: stream order alone keeps them from overlapping."""
        return self.weights.where(self._is_in_line)

    @cached_property
    def ahead(self) -> WorkRows:
        """The weights' copies on streams of their own, which run ahead of the work that reads them."""
        return self.weights.where(~self._is_in_line)

    @cached_property
    def _is_in_line(self) -> npt.NDArray[np.bool_]:
        compute, copies, n_groups = self.compute, self.weights, len(self.groups)
        n_streams = max(len(self.labels["stream"][1]), 1)
        busy = np.bincount(self._stream_of(compute), weights=compute.length, minlength=n_groups * n_streams)
        by_stream = busy.reshape(n_groups, n_streams)
        total = np.maximum(by_stream.sum(axis=1), 1)[:, None]
        computes = (by_stream / total >= _COMPUTE_STREAM_SHARE).ravel()
        known = self.codes("stream")[copies.row] != ABSENT
        is_in_line: npt.NDArray[np.bool_] = known & computes[self._stream_of(copies)]
        return is_in_line

    def _stream_of(self, rows: WorkRows) -> Int64:
        n_streams = max(len(self.labels["stream"][1]), 1)
        return rows.group * n_streams + np.maximum(self.codes("stream")[rows.row], 0)

    @cached_property
    def compute(self) -> WorkRows:
        """Kernels and compute intervals; rows of UNCOUNTED detail hide nothing."""
        return self.rows(self.is_any("kind", ["compute"]) & ~self.is_any("detail", UNCOUNTED))

    @cached_property
    def everything(self) -> WorkRows:
        """All that was done: on the device, or on the host in its place."""
        return self.rows(self._is_work)

    @cached_property
    def busy_h2d(self) -> Intervals:
        """Union of the copies, on the axis."""
        return union(self.h2d.start, self.h2d.end)

    @cached_property
    def busy_weights(self) -> Intervals:
        """Union of the copies of weights, on the axis."""
        return self.busy_h2d if self.weights is self.h2d else union(self.weights.start, self.weights.end)

    @cached_property
    def busy_compute(self) -> Intervals:
        """Union of the computing, on the axis."""
        return union(self.compute.start, self.compute.end)

    @cached_property
    def h2d_ns(self) -> Int64:
        """Busy copy of each context."""
        return self.length(self.busy_h2d)

    @cached_property
    def compute_ns(self) -> Int64:
        """Busy compute of each context."""
        return self.length(self.busy_compute)

    @property
    def window_ns(self) -> Int64:
        """From the first to the last device row of each context."""
        return self._line.lengths

    def judged(self, lost_ns: Int64, floor: Severity | None = None) -> Iterator[Judged]:
        """The groups that a rule has to tell of, by what each context loses; see `Groups.judged`."""
        return self.groups.judged(self.groups.typical(lost_ns), self.groups.typical(self.window_ns), floor)

    def typical(self, group: int, values: npt.NDArray[Any]) -> float:
        """Median of `values` (one a context) over one group's passes."""
        return float(np.median(values[self.groups.of_context == group]))

    def hidden_of(self, rows: WorkRows) -> Int64:
        """How much of each row computing covers."""
        return covered_length(self.busy_compute, rows.start, rows.end)

    def hidden(self, copies: Intervals) -> Int64:
        """How much of these intervals on the axis computing covers, by context."""
        context = self._line.group_of(copies.starts)
        return self.sum(context, covered_length(self.busy_compute, copies.starts, copies.ends))

    def length(self, intervals: Intervals) -> Int64:
        """Summed length of intervals on the axis, by context."""
        return self.sum(self._line.group_of(intervals.starts), intervals.ends - intervals.starts)

    def count(self, rows: WorkRows) -> Int64:
        """How many of the rows each context has."""
        return np.bincount(rows.context, minlength=len(self.groups.of_context))

    def sum(self, context: Int64, values: Any) -> Int64:
        """Sum of values by context, as `sum_by`."""
        return sum_by(context, values, len(self.groups.of_context))

    def spans(self, rows: WorkRows) -> tuple[Int64, Int64]:
        """First start and last end in each context; 0 and 0 where it has no such row."""
        n_contexts = len(self.groups.of_context)
        first = np.full(n_contexts, np.iinfo(np.int64).max)
        last = np.full(n_contexts, np.iinfo(np.int64).min)
        np.minimum.at(first, rows.context, rows.start)
        np.maximum.at(last, rows.context, rows.end)
        some = last > first
        return np.where(some, first, 0), np.where(some, last, 0)

    def context_of(self, positions: Int64) -> Int64:
        """The context that positions on the axis belong to."""
        return self._line.group_of(positions)


def _without_warmups(events: pa.Table, passes: pa.Table) -> pa.Table:
    warm = passes.filter(pc.fill_null(passes["warmup"], False))["pass_id"]
    if len(warm) == 0:
        return events
    return events.filter(pc.invert(pc.fill_null(pc.is_in(events["pass_id"], value_set=warm.combine_chunks()), False)))


def _ints(column: pa.ChunkedArray, missing: int = ABSENT) -> Int64:
    filled = pc.fill_null(column, missing) if column.null_count else column
    values: Int64 = filled.to_numpy().astype(np.int64, copy=False)
    return values


def _labels(column: pa.ChunkedArray) -> tuple[Int64, list[str]]:
    if column.num_chunks == 0:
        return np.empty(0, np.int64), []
    array = column.unify_dictionaries().combine_chunks()
    indices = array.indices.fill_null(ABSENT) if array.null_count else array.indices
    return indices.to_numpy(zero_copy_only=False), [str(text) for text in array.dictionary.to_pylist()]
