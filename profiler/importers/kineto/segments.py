"""Cuts a trace into passes, ubatches and layers by its annotations; null wherever they do not say.

A row belongs to the range of hprof's own (the text format of `executor.tracing.nvtx_names`) in which its host call was
made, on the same thread. torch.profiler's `ProfilerStep#n` only says when the host issued a step's work, which may run
long after: there a pass is a stretch of the device's time, from the step's first work to that of its process's next
step, and the device rows of that process belong to the stretch in which they ran.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from executor.arrays import Flags, Int64
from executor.tracing.nvtx_names import PassName, StepName, UbatchName, parse
from profiler.arithmetic.joins import distinct
from profiler.importers import hprof_passes
from profiler.importers.absent import from_arrow, is_known
from profiler.importers.kineto.host_calls import HostCalls
from profiler.schema import PASSES, UBATCHES

_STEP: Final = re.compile(r"^ProfilerStep\s*#(\d{1,9})$")


@dataclass(frozen=True, slots=True)
class ProfilerStep:
    """torch.profiler's own name of an iteration."""

    number: int


@dataclass(frozen=True, slots=True)
class AnnotationRanges:
    """Annotations of one type, in order of their start: `names[i]` is parsed."""

    names: list[Any]
    start: Int64
    end: Int64
    thread: Int64

    def holding(self, thread: Int64, start: Int64, end: Int64) -> Int64:
        """For each interval the range that was opened last before it, if that holds the interval; else -1."""
        n = len(self.names)
        if n == 0:
            return np.full(len(start), -1, np.int64)
        is_query = np.arange(n + len(start)) >= n
        threads = np.concatenate([self.thread, thread])
        order = np.lexsort((is_query, np.concatenate([self.start, start]), threads))
        latest = np.maximum.accumulate(np.where(order < n, np.arange(len(order)), -1))
        found = np.empty(len(order), np.int64)
        found[order] = np.where(latest >= 0, order[latest], -1)
        last = found[n:]
        inside = (last >= 0) & (self.thread[last] == thread) & (end <= self.end[last])
        return np.where(inside, last, -1)


def threads_of(rows: pa.Table) -> Int64:
    """A number from 1 for each (process, thread)."""
    process, lane = (
        np.unique(pc.fill_null(rows[name], -1).to_numpy(), return_inverse=True)[1] for name in ("process", "lane")
    )
    threads: Int64 = process * (int(lane.max()) + 1) + lane + 1
    return threads


def ranges_of(rows: pa.Table, threads: Int64, kind: type[object]) -> AnnotationRanges:
    """The annotations whose name is of `kind`: PassName, UbatchName, StepName or ProfilerStep."""
    names = rows["name"].combine_chunks()
    parsed = [_parsed(text, kind) for text in names.dictionary.to_pylist()]
    known = np.array([name is not None for name in parsed], dtype=bool)
    codes = names.indices.to_numpy()
    is_annotation = pc.equal(rows["role"].combine_chunks().cast(pa.string()), "annotation").to_numpy(False)
    mine = np.flatnonzero(is_annotation & known[codes])
    chosen = mine[np.argsort(rows["t_start"].to_numpy()[mine], kind="stable")]
    start, end = (rows[name].to_numpy()[chosen] for name in ("t_start", "t_end"))
    return AnnotationRanges([parsed[code] for code in codes[chosen].tolist()], start, end, threads[chosen])


def _parsed(text: str, kind: type[object]) -> Any:
    if kind is ProfilerStep:
        match = _STEP.match(text)
        return ProfilerStep(int(match[1])) if match else None
    name = parse(text)
    return name if isinstance(name, kind) else None


DEFAULT_ARM: Final = "trace"
_WORK_ROLES: Final = ("kernel", "copy", "memset")


class StepWindows(NamedTuple):
    """When the work of each step began and ended, by process and in the order of time.

    Merged traces hold the steps of several ranks: each process's windows follow each other, and may lie across those
    of the others.
    """

    step: Int64  # only steps that issued work
    start: Int64
    end: Int64  # of a process's last one its last work's end, else the next one's start
    process: Int64

    @classmethod
    def of(cls, rows: pa.Table, in_step: Int64, process_of_step: Int64) -> StepWindows:
        """in_step: for each row the step that issued it, -1 for none."""
        work = np.flatnonzero(_is_work(rows) & (in_step >= 0))
        start, end = (rows[name].to_numpy()[work] for name in ("t_start", "t_end"))
        limits = np.iinfo(np.int64)
        first, last = (np.full(len(process_of_step), limit) for limit in (limits.max, limits.min))
        np.minimum.at(first, in_step[work], start)
        np.maximum.at(last, in_step[work], end)
        step = np.unique(in_step[work])
        step = step[np.lexsort((first[step], process_of_step[step]))]
        process = process_of_step[step]
        opens = np.flatnonzero(np.diff(process, prepend=-1))  # the place of each process's first window
        ends = np.append(first[step][1:], 0)[: len(step)]
        if len(step):
            ends[np.append(opens[1:], len(step)) - 1] = np.maximum.reduceat(last[step], opens)
        return cls(step, first[step], ends, process)

    def steps_of(self, rows: pa.Table, issued_in: Int64, process: Int64) -> Int64:
        """For each row its step: device rows are of the window in which most of them ran, host rows where issued."""
        work = np.flatnonzero(_is_work(rows))
        start, end = (rows[name].to_numpy()[work] for name in ("t_start", "t_end"))
        middle = start + (end - start) // 2
        windows = AnnotationRanges(self.step.tolist(), self.start, self.end, self.process)
        found = windows.holding(process[work], middle, middle)
        steps = issued_in.copy()
        steps[work] = np.where(found >= 0, self.step[found], -1)
        return steps

    def by_step(self, n_steps: int) -> list[tuple[int, int] | None]:
        """The window of each step; None for those that issued no work."""
        found: list[tuple[int, int] | None] = [None] * n_steps
        for step, start, end in zip(self.step.tolist(), self.start.tolist(), self.end.tolist(), strict=True):
            found[step] = (start, end)
        return found


def _is_work(rows: pa.Table) -> Flags:
    found: Flags = pc.is_in(rows["role"].cast(pa.string()), pa.array(_WORK_ROLES)).to_numpy()
    return found


@dataclass(frozen=True, slots=True)
class AnnotatedSegments:
    """What the annotations say: columns for `events_table`, and the tables `passes` and `ubatches`."""

    context: dict[str, pa.Array]
    passes: pa.Table
    ubatches: pa.Table
    default_arm: str | None = None  # the arm of passes that name none


def segment(rows: pa.Table, launches: HostCalls) -> AnnotatedSegments:
    """Read the annotations among `rows`; passes that come from ProfilerStep ranges are of DEFAULT_ARM."""
    if "annotation" not in rows["role"].unique().to_pylist():
        return AnnotatedSegments({}, PASSES.empty_table(), UBATCHES.empty_table())
    threads = threads_of(rows)
    passes, by_step, processes = ranges_of(rows, threads, PassName), False, threads
    if not passes.names:
        processes = _stepping_processes(rows, launches)
        passes, by_step = ranges_of(rows, processes, ProfilerStep), True
    ubatches, steps = (ranges_of(rows, threads, kind) for kind in (UbatchName, StepName))
    start, end = (rows[name].to_numpy()[launches.row] for name in ("t_start", "t_end"))
    thread = np.where(launches.found | launches.is_host, threads[launches.row], -1)
    # A step holds what any thread of its process issued. A row without a host call belongs to no range.
    in_pass = passes.holding(np.where(thread >= 0, processes, -1) if by_step else thread, start, end)
    windows: list[tuple[int, int] | None] = list(
        zip(passes.start.tolist(), _ends(passes, in_pass, rows).tolist(), strict=True)
    )
    if by_step:
        of_steps = StepWindows.of(rows, in_pass, passes.thread)
        if len(of_steps.step):  # else nothing ran on a device, and the host's steps are all that there is
            in_pass, windows = of_steps.steps_of(rows, in_pass, processes), of_steps.by_step(len(passes.names))
    in_ubatch, in_step = (ranges.holding(thread, start, end) for ranges in (ubatches, steps))
    ids = hprof_passes.pass_ids(passes.names)
    context = {
        "pass_id": _taken(ids, in_pass, pa.int32()),
        "phase": _taken([name.phase for name in ubatches.names], in_ubatch, pa.string()),
        "ubatch": _taken([name.ubatch for name in ubatches.names], in_ubatch, pa.int32()),
        "n_tokens": _taken([name.n_tokens for name in ubatches.names], in_ubatch, pa.int32()),
        "layer": _taken([name.layer for name in steps.names], in_step, pa.int32()),
        "tensor": _taken([name.tensor for name in steps.names], in_step, pa.string()),
    }
    own = ranges_of(rows, processes, UbatchName).thread if by_step else ubatches.thread
    of_ubatch = passes.holding(own, ubatches.start, ubatches.end)
    ends = _ends(ubatches, in_ubatch, rows)
    ubatch_rows = hprof_passes.ubatch_table(ubatches.names, ubatches.start, ends, of_ubatch, passes.names, ids)
    boots = [0] * len(passes.names) if by_step else hprof_passes.boots(_processes(passes, rows, threads))
    named = [
        _named(name, order) | {"boot": boot} for order, (name, boot) in enumerate(zip(passes.names, boots, strict=True))
    ]
    pass_rows = hprof_passes.pass_table(named, ids, windows, ubatch_rows)
    return AnnotatedSegments(context, pass_rows, ubatch_rows, DEFAULT_ARM if by_step else None)


def _stepping_processes(rows: pa.Table, launches: HostCalls) -> Int64:
    """A number from 0 for the process of each row; rows that tell none are of the only one with steps, if it is one."""
    process = from_arrow(launches.process)
    with_steps = np.unique(ranges_of(rows, process, ProfilerStep).thread)
    if len(with_steps) == 1:
        process = np.where(is_known(process), process, with_steps[0])
    _, number = distinct(process)
    return number


def _processes(ranges: AnnotationRanges, rows: pa.Table, threads: Int64) -> list[int]:
    """The process of each range."""
    of_thread, first = np.unique(threads, return_index=True)
    process = from_arrow(rows["process"])[first]
    found: list[int] = process[np.searchsorted(of_thread, ranges.thread)].tolist()
    return found


def _named(name: PassName | ProfilerStep, order: int) -> dict[str, Any]:
    if isinstance(name, ProfilerStep):
        return {"arm": DEFAULT_ARM, "repetition": order, "warmup": False}
    return hprof_passes.asked(name)


def _ends(ranges: AnnotationRanges, of_row: Int64, rows: pa.Table) -> Int64:
    """When each range, and all the work that was launched in it, has ended."""
    ends = ranges.end.copy()
    inside = of_row >= 0
    np.maximum.at(ends, of_row[inside], rows["t_end"].to_numpy()[inside])
    return ends


def _taken(values: Sequence[object], index: Int64, kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind).take(pa.array(index, mask=index < 0))
