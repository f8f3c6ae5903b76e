"""The copies and the computing of a capture laid out for the rules: all devices on one axis, and what each device did
in each pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from executor.arrays import Flags, Floats, Int64
from profiler.arithmetic.groups import group_by, sum_by
from profiler.arithmetic.intervals import MAX_ABS_NS, Coverage, Intervals, Line, either, union
from profiler.arithmetic.joins import distinct
from profiler.findings.finding import Judged, Moment, Severity, Subjects
from profiler.manifest import Manifest
from profiler.metrics.devices import KERNEL_STREAM_SHARE
from profiler.metrics.events import ints
from profiler.metrics.figures import pass_windows
from profiler.metrics.overlap import DEVICE, PASS_ON_DEVICE, DeviceTime, PassWindows
from profiler.metrics.passes import CELL_KEYS
from profiler.schema import ABSENT, COMPUTE, CPU_COMPUTE, DEVICE_WORK, H2D, ROLES, label_codes, roles_of

if TYPE_CHECKING:
    from profiler.capture import Capture

_INTS: Final = ("pass_id", "process", "device", "bytes", "correlation_id", "waits_for")
_LABELS: Final = ("stream", "kind", "name", "tensor", "source_memory")
_STRAY_SHARE: Final = 0.01  # of a stream's copies: kernels that take less could hide nothing worth telling of
_IS_WORK: Final = np.isin(np.arange(len(ROLES) + 1), (*DEVICE_WORK, CPU_COMPUTE))  # by role; ABSENT is the last
_TIMES: Final = ("t_start", "t_end")
Index = npt.NDArray[np.int32] | Int64
"""Numbers of rows, contexts or groups: of many rows int32."""
COLUMNS: Final = (*_INTS, *_LABELS, "detail", *_TIMES)


@dataclass(frozen=True, slots=True)
class WorkRows:
    """Some rows of the events, in parallel; `start` and `end` are positions on the one axis. Indices are int32: nobody
    has 2 billion rows, and of 10 M they would take another 100 MB."""

    row: npt.NDArray[np.int32]  # index into the columns of the analysis
    context: npt.NDArray[np.int32]
    group: npt.NDArray[np.int32]
    start: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.row)

    def where(self, mask: Flags | Int64) -> WorkRows:
        """Only the rows that `mask` keeps, or those at its positions."""
        return WorkRows(*(getattr(self, name)[mask] for name in ("row", "context", "group", "start", "end")))

    @property
    def length(self) -> Int64:
        """Durations in ns."""
        return self.end - self.start

    @property
    def busy(self) -> Intervals:
        """Their union."""
        return union(self.start, self.end)


class _IntColumns(dict[str, Int64]):
    """The integer columns of a table, made when a rule first looks at them; the table's own are then let go.

    Of one that no row fills, as most sources leave some, a single number is kept: 10 M nulls would take 80 MB.
    """

    def __init__(self, table: pa.Table) -> None:
        self._columns: dict[str, pa.ChunkedArray] = {}
        for name in (*_INTS, *_TIMES):
            if table[name].null_count == table.num_rows:
                self[name] = np.broadcast_to(self._kind(name)(self._null(name)), table.num_rows)
            else:
                self._columns[name] = table[name]

    def __missing__(self, name: str) -> Int64:
        self[name] = ints(self._columns.pop(name), self._kind(name), self._null(name))
        return self[name]

    @staticmethod
    def _kind(name: str) -> type[np.int32 | np.int64]:
        return np.int32 if name in ("pass_id", "device") else np.int64

    @staticmethod
    def _null(name: str) -> int:
        return MAX_ABS_NS + 1 if name in _TIMES else ABSENT


class Columns(NamedTuple):
    """The columns of the events that are judged."""

    ints: _IntColumns
    labels: dict[str, tuple[npt.NDArray[np.int32], tuple[str, ...]]]
    role: npt.NDArray[np.int8]

    @classmethod
    def of(cls, events: pa.Table, passes: pa.Table, manifest: Manifest) -> Columns:
        """Of tables with COLUMNS and with those of the passes; what is not told of is let go with the events."""
        events = _without_warmups(events, passes, manifest)
        labels = {name: label_codes(events[name]) for name in _LABELS}
        return cls(_IntColumns(events), labels, roles_of(events["kind"], events["detail"]))


class CopyAnalysis:
    """Columns as numpy arrays, nulls and unknown labels as ABSENT, and what several rules need of them.

    A context is what a device did in a pass: (pass, process, device), as in the tables of figures. Where passes have
    clocks of their own, each context gets its own stretch of the axis; on one clock each device does, and contexts
    are the windows of the passes on it. A group is an arm's cell on a device. Warm-up passes are not judged.
    """

    def __init__(self, columns: Columns, passes: pa.Table, manifest: Manifest) -> None:
        self.manifest = manifest
        self.ints, self.labels, self.role = columns
        start, end = self.ints["t_start"], self.ints["t_end"]
        possible = (end >= start) & (start >= -MAX_ABS_NS) & (end <= MAX_ABS_NS)
        self._is_work = possible & _IS_WORK[self.role]
        work = slice(None) if self._is_work.all() else self._is_work
        contexts = group_by({name: self.ints[name][work] for name in PASS_ON_DEVICE})
        self.groups = Subjects(contexts.keys, passes, "GPU" if self.is_gpu else "device")
        self.context_of_row = np.full(len(start), ABSENT, np.int32)
        self.context_of_row[work] = contexts.of_row
        self._pass_of_context = contexts.keys["pass_id"]
        told = pc.and_(pc.is_valid(passes["pass_id"]), pc.is_valid(passes["bytes_h2d"]))
        self._passes_with_told_bytes = ints(passes.filter(told)["pass_id"], np.int64)
        spans = _spans(contexts.of_row, start[work], end[work], len(self.groups.of_context))
        windows = _told_or(spans, contexts.keys["pass_id"], pass_windows(passes))
        axis_names = PASS_ON_DEVICE if manifest.has_own_clocks else DEVICE
        axes = group_by({name: contexts.keys[name] for name in axis_names})
        self._axis_of_context = axes.of_row
        self._line = Line(
            np.append(axes.of_row, axes.of_row),
            np.append(spans[0], windows[0]),
            np.append(spans[1], windows[1]),
            len(axes),
        )
        self._window = self._line.place(axes.of_row, windows[0]), self._line.place(axes.of_row, windows[1])

    @classmethod
    def of(cls, capture: Capture) -> CopyAnalysis:
        """The analysis of a whole capture."""
        passes = capture.table("passes", ["pass_id", "arm", "warmup", "t_start", "t_end", "bytes_h2d", *CELL_KEYS])
        columns = Columns.of(capture.table("events", list(COLUMNS)), passes, capture.manifest)
        pa.default_memory_pool().release_unused()  # of 10 M events Arrow would keep 0.7 GB that nothing else can have
        found = cls(columns, passes, capture.manifest)
        pa.default_memory_pool().release_unused()  # and here 0.2 GB of columns that became arrays
        return found

    @property
    def is_gpu(self) -> bool:
        """Whether the devices are GPUs, so that CUDA's means are to the point: not hprof's own `cpu` and `sim`."""
        return self.manifest.source != "hprof" or self.manifest.machine.get("device") not in ("cpu", "sim")

    def codes(self, name: str) -> npt.NDArray[np.int32]:
        """A label column as codes."""
        return self.labels[name][0]

    def code(self, name: str, text: str) -> int:
        """The code of one label; one that no row has where the label does not occur."""
        texts = self.labels[name][1]
        return texts.index(text) if text in texts else ABSENT - 1

    @cached_property
    def scope(self) -> Int64:
        """A number for each (pass, process) of every row: correlation ids are its own."""
        processes, process = distinct(self.ints["process"])
        return distinct(self.ints["pass_id"])[1] * len(processes) + process

    def rows(self, mask: Flags) -> WorkRows:
        """Rows of work that `mask` (over all rows) keeps."""
        row = np.flatnonzero(mask & self._is_work).astype(np.int32)
        context = self.context_of_row[row]
        axis = context.astype(np.int64) if self.manifest.has_own_clocks else self._axis_of_context[context]
        start, end = (self._line.place(axis, self.ints[name][row]) for name in ("t_start", "t_end"))
        return WorkRows(row, context, self.groups.of_context.astype(np.int32)[context], start, end)

    @cached_property
    def h2d(self) -> WorkRows:
        """Explicit host to device copies (no unified-memory migrations)."""
        return self.rows(self.role == H2D)

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
    def _is_in_line(self) -> Flags:
        """Whether each copy's stream holds a share of the device's compute, and more of it than a stray kernel."""
        compute, copies = self.compute, self.weights
        computed, copied = (self._by_stream(rows) for rows in (compute, copies))
        total = np.maximum(computed.sum(axis=1), 1)[:, None]
        computes = ((computed / total >= KERNEL_STREAM_SHARE) & (computed >= _STRAY_SHARE * copied)).ravel()
        known = self.codes("stream")[copies.row] != ABSENT
        is_in_line: Flags = known & computes[self._stream_of(copies)]
        return is_in_line

    def _by_stream(self, rows: WorkRows) -> Floats:
        """Summed lengths, ns: (groups, streams); rows that name no stream are on none of them."""
        n_groups, n_streams = len(self.groups), max(len(self.labels["stream"][1]), 1)
        is_named = self.codes("stream")[rows.row] != ABSENT
        rows = rows if is_named.all() else rows.where(is_named)
        lengths = np.bincount(self._stream_of(rows), weights=rows.length, minlength=n_groups * n_streams)
        return lengths.astype(np.float64).reshape(n_groups, n_streams)

    def _stream_of(self, rows: WorkRows) -> Int64:
        n_streams = max(len(self.labels["stream"][1]), 1)
        return rows.group * np.int64(n_streams) + np.maximum(self.codes("stream")[rows.row], 0)

    @property
    def compute(self) -> WorkRows:
        """Kernels and compute intervals: what hides copies. Made anew each time: of 10 M rows they take 220 MB."""
        return self.rows(self.role == COMPUTE)

    @cached_property
    def time(self) -> DeviceTime:
        """When each device computed, and when it worked at all."""
        work = self.rows(self.role != CPU_COMPUTE)
        return DeviceTime(self.compute.busy, work.busy)

    @cached_property
    def busy_h2d(self) -> Intervals:
        """Union of the copies, on the axis."""
        return self.h2d.busy

    @cached_property
    def h2d_ns(self) -> Int64:
        """Busy copy of each context."""
        return self.length(self.busy_h2d)

    @cached_property
    def compute_ns(self) -> Int64:
        """Busy compute of each context."""
        return self.length(self.time.computing.busy)

    @property
    def window_ns(self) -> Int64:
        """How long each context's pass took; where that is not told, from its first work to its last."""
        first, last = self._window
        return last - first

    @cached_property
    def idle_ns(self) -> Int64:
        """How long each context's device did nothing; 0 where it never worked, as in passes that the host computes,
        and where that cannot be told, because its copies were not recorded."""
        contexts = self.context_of_row[self._is_work & (self.role != CPU_COMPUTE)]
        works = np.bincount(contexts, minlength=len(self._pass_of_context)) > 0
        return np.where(works & self._tells_copies, self.time.idle_ns(*self._window), 0)

    @property
    def _tells_copies(self) -> Flags:
        """Whether each context's copies are known, by the rule of `pass_figures`: some of its pass's are among the
        rows, or its pass tells how many bytes they moved, or no copy is known to be missing."""
        if not self.manifest.has_unrecorded_copies:
            return np.ones(len(self._pass_of_context), np.bool_)
        copies = self.h2d_ns > 0
        in_pass = self._pass_of_context != ABSENT
        copying = self._pass_of_context[copies & in_pass]
        tells: Flags = copies | np.isin(self._pass_of_context, np.append(copying, self._passes_with_told_bytes))
        return tells

    @cached_property
    def idle_unexplained_ns(self) -> Int64:
        """The part of it in which the host did not compute in the device's place either."""
        on_host = self.rows(self.role == CPU_COMPUTE)
        if len(on_host) == 0:
            return self.idle_ns
        busy = DeviceTime(self.time.computing.busy, either(self.time.working.busy, on_host.busy))
        return np.minimum(self.idle_ns, busy.idle_ns(*self._window))

    def idle_gaps(self) -> tuple[Int64, Int64, Int64]:
        """The stretches of `idle_ns`: the context of each, its start on the axis, and its length in ns."""
        return self.time.gaps(*self._window)

    def costliest(self, rows: WorkRows, group: int, cost_ns: npt.NDArray[Any] | None = None) -> tuple[Moment, ...]:
        """Where the group's costliest of the rows is; cost_ns: of each row (default: its length)."""
        return self.worst(rows.row, rows.group == group, rows.length if cost_ns is None else cost_ns)

    def worst(self, row: Index, is_mine: Flags, cost_ns: npt.NDArray[Any]) -> tuple[Moment, ...]:
        """The same of any rows, of which those of `is_mine` count."""
        mine = np.flatnonzero(is_mine)
        if len(mine) == 0:
            return ()
        found = row[mine[np.argmax(cost_ns[mine])]]
        return (self._moment(*(int(self.ints[name][found]) for name in ("pass_id", "t_start", "t_end"))),)

    def longest(self, context: Int64, start: Int64, length: Int64, group: int) -> tuple[Moment, ...]:
        """Where the longest stretch of the axis in one of the group's contexts is."""
        mine = np.flatnonzero(self.groups.of_context[context] == group)
        if len(mine) == 0:
            return ()
        at = mine[np.argmax(length[mine])]
        first = int(self._line.times_of(start[at], self._axis_of_context[context[at]]))
        return (self._moment(int(self._pass_of_context[context[at]]), first, first + int(length[at])),)

    @staticmethod
    def _moment(pass_id: int, start_ns: int, end_ns: int) -> Moment:
        return Moment(None if pass_id == ABSENT else pass_id, start_ns, end_ns)

    def judged(self, lost_ns: Int64, floor: Severity | None = None) -> Iterator[Judged]:
        """The groups that a rule has to tell of, by what each context loses; see `Subjects.judged`."""
        return self.groups.judged(self.groups.typical(lost_ns), self.groups.typical(self.window_ns), floor)

    def typical(self, group: int, values: npt.NDArray[Any]) -> float:
        """Median of `values` (one a context) over one group's passes."""
        return float(np.median(values[self.groups.of_context == group]))

    def hidden(self, copies: Intervals) -> Int64:
        """How much of these intervals on the axis computing covers, by context."""
        return self.time.hidden_in(copies, *self._reach)

    def exposed(self, copies: Intervals) -> Int64:
        """How much of these intervals on the axis computing does not cover, by context."""
        return self.length(copies) - self.hidden(copies)

    def length(self, intervals: Intervals) -> Int64:
        """Summed length of intervals on the axis, by context: on one clock inside its window, else all of its own."""
        return Coverage(intervals).of(*self._reach)

    @cached_property
    def _reach(self) -> tuple[Int64, Int64]:
        if not self.manifest.has_own_clocks:
            return self._window
        return self._line.spans()

    def count(self, rows: WorkRows) -> Int64:
        """How many of the rows each context has."""
        return np.bincount(rows.context, minlength=len(self.groups.of_context))

    def sum(self, context: Index, values: npt.NDArray[np.integer | np.bool_ | np.floating]) -> Int64:
        """Sum of values by context, as `sum_by`."""
        return sum_by(context.astype(np.int64, copy=False), values, len(self.groups.of_context))

    def spans(self, rows: WorkRows) -> tuple[Int64, Int64]:
        """First start and last end in each context; 0 and 0 where it has no such row."""
        n_contexts = len(self.groups.of_context)
        first = np.full(n_contexts, np.iinfo(np.int64).max)
        last = np.full(n_contexts, np.iinfo(np.int64).min)
        np.minimum.at(first, rows.context, rows.start)
        np.maximum.at(last, rows.context, rows.end)
        some = last > first
        return np.where(some, first, 0), np.where(some, last, 0)


def _spans(context: Int64, starts: Int64, ends: Int64, n_contexts: int) -> tuple[Int64, Int64]:
    """The first start and the last end in each context."""
    first, last = np.full(n_contexts, MAX_ABS_NS), np.full(n_contexts, -MAX_ABS_NS)
    np.minimum.at(first, context, starts)
    np.maximum.at(last, context, ends)
    return first, last


def _told_or(spans: tuple[Int64, Int64], pass_of_context: Int64, told: PassWindows) -> tuple[Int64, Int64]:
    """When each context began and ended: as its pass tells, else its span."""
    order = np.argsort(told.pass_id, kind="stable")
    if len(order) == 0:
        return spans
    at = order[np.minimum(np.searchsorted(told.pass_id[order], pass_of_context), len(order) - 1)]
    is_told = told.pass_id[at] == pass_of_context
    return np.where(is_told, told.starts[at], spans[0]), np.where(is_told, told.ends[at], spans[1])


def _without_warmups(events: pa.Table, passes: pa.Table, manifest: Manifest) -> pa.Table:
    """The events that are judged. On one clock those of warm-ups stay, as rows of no pass: their compute may hide
    copies of the next pass."""
    warm = passes.filter(pc.fill_null(passes["warmup"], False))["pass_id"]
    if len(warm) == 0:
        return events
    is_warm = pc.fill_null(pc.is_in(events["pass_id"], value_set=warm.combine_chunks()), False)
    if manifest.has_own_clocks:
        return events.filter(pc.invert(is_warm))
    position = events.schema.get_field_index("pass_id")
    judged = pc.if_else(is_warm, pa.scalar(None, pa.int32()), events["pass_id"])
    return events.set_column(position, events.schema.field(position), judged)
