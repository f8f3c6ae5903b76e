"""Which work belongs to which NVTX range, as `nsys stats -r nvtx_gpu_proj_trace` decides it, without loops.

A range owns a GPU operation if the CUDA call that launched it lies inside the range on the same thread. All
threads are laid end to end on one axis (`profiler.arithmetic.intervals.Line`), so one search serves them all.
`Places` holds the answer: the pass, phase, ubatch, layer and tensor of each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from executor.arrays import Flags, Int64
from profiler.arithmetic.intervals import Line
from profiler.arithmetic.joins import distinct
from profiler.importers.absent import absent, is_known, taken

# Calls of one thread nest at most runtime > driver, ranges a few dozen deep; deeper is damage and left out.
_MAX_CALL_LEVELS: Final = 16
_MAX_RANGE_LEVELS: Final = 256


@dataclass(frozen=True, slots=True)
class GroupedSpans:
    """Intervals in groups (threads, or processes): int64 arrays of one length."""

    group: Int64
    start: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.start)

    def part(self, rows: slice) -> GroupedSpans:
        """A view of some neighbours."""
        return GroupedSpans(self.group[rows], self.start[rows], self.end[rows])

    def take(self, rows: Int64) -> GroupedSpans:
        """Only these rows."""
        return GroupedSpans(self.group[rows], self.start[rows], self.end[rows])


@dataclass(frozen=True, slots=True)
class Projection:
    """For each range: how many GPU operations it owns, and when the first began and the last ended."""

    n_ops: Int64
    first_ns: Int64  # meaningless where n_ops is 0
    last_ns: Int64


def project(ranges: GroupedSpans, calls: GroupedSpans, op_call: Int64, op_start: Int64, op_end: Int64) -> Projection:
    """The operations that each range owns; `op_call` is the row of each operation's call, if any."""
    owned = is_known(op_call)
    if not owned.all():
        op_call, op_start, op_end = op_call[owned], op_start[owned], op_end[owned]
    n_ops = np.bincount(op_call, minlength=len(calls))
    first = np.full(len(calls), np.iinfo(np.int64).max)
    last = np.full(len(calls), np.iinfo(np.int64).min)
    np.minimum.at(first, op_call, op_start)
    np.maximum.at(last, op_call, op_end)
    used = np.flatnonzero(n_ops)
    return _projected(ranges, calls.take(used), n_ops[used], first[used], last[used])


def _projected(ranges: GroupedSpans, calls: GroupedSpans, n_ops: Int64, first: Int64, last: Int64) -> Projection:
    result = Projection(
        np.zeros(len(ranges), np.int64),
        np.full(len(ranges), np.iinfo(np.int64).max),
        np.full(len(ranges), np.iinfo(np.int64).min),
    )
    if len(ranges) == 0 or len(calls) == 0:
        return result
    outer, inner = _on_one_axis(ranges, calls)
    rows = np.argsort(inner.start, kind="stable")
    for _ in range(_MAX_CALL_LEVELS):
        if len(rows) == 0:
            break
        # Inside a level both starts and ends rise, so what a range contains is one slice.
        rising = inner.end[rows] == np.maximum.accumulate(inner.end[rows])
        here, rows = rows[rising], rows[~rising]
        low = np.searchsorted(inner.start[here], outer.start, side="left")
        high = np.maximum(np.searchsorted(inner.end[here], outer.end, side="right"), low)
        counts = np.concatenate([[0], np.cumsum(n_ops[here])])
        result.n_ops[:] += counts[high] - counts[low]
        np.minimum(result.first_ns, _slice_minimum(first[here], low, high), out=result.first_ns)
        np.maximum(result.last_ns, -_slice_minimum(-last[here], low, high), out=result.last_ns)
    return result


def innermost(ranges: GroupedSpans, inside: GroupedSpans) -> Int64:
    """For each interval of `inside` the row of the innermost range around it in its group, if any.

    Innermost is the latest start; ranges that overlap without nesting are allowed.
    """
    found = absent(len(inside))
    if len(ranges) == 0 or len(inside) == 0:
        return found
    outer, inner = _on_one_axis(ranges, inside)
    best_start = np.full(len(inside), np.iinfo(np.int64).min)
    rows = np.lexsort((-outer.end, outer.start))
    for _ in range(_MAX_RANGE_LEVELS):
        if len(rows) == 0:
            break
        here, rows = _outermost(rows, outer.end)
        at = np.searchsorted(outer.start[here], inner.start, side="right") - 1
        around = here[np.maximum(at, 0)]
        covers = (at >= 0) & (outer.end[around] >= inner.end) & (outer.start[around] >= best_start)
        found[covers] = around[covers]
        best_start[covers] = outer.start[around[covers]]
    return found


def _outermost(rows: Int64, ends: Int64) -> tuple[Int64, Int64]:
    """Split rows sorted by start: those that no earlier one contains (their ends rise), and the rest."""
    furthest = np.maximum.accumulate(ends[rows])
    free = np.concatenate([[True], ends[rows][1:] > furthest[:-1]])
    return rows[free], rows[~free]


def _on_one_axis(outer: GroupedSpans, inner: GroupedSpans) -> tuple[GroupedSpans, GroupedSpans]:
    groups, codes = distinct(np.concatenate([outer.group, inner.group]))
    if len(groups) == 1:
        return outer, inner
    starts = np.concatenate([outer.start, inner.start])
    ends = np.concatenate([outer.end, inner.end])
    line = Line(codes, starts, ends, len(groups))
    placed = GroupedSpans(codes, line.place(codes, starts), line.place(codes, ends))
    n_outer = len(outer)
    return placed.part(slice(n_outer)), placed.part(slice(n_outer, len(placed)))


def _slice_minimum(values: Int64, low: Int64, high: Int64) -> Int64:
    """min(values[low[i]:high[i]]) for each i, int64's largest where the slice is empty.

    Two overlapping blocks of a power of two cover a slice; the table of block minima doubles step by step.
    """
    result = np.full(len(low), np.iinfo(np.int64).max)
    length = high - low
    blocks, width = values, 1
    while width <= len(values):
        rows = np.flatnonzero((length >= width) & (length < 2 * width))
        result[rows] = np.minimum(blocks[low[rows]], blocks[high[rows] - width])
        blocks, width = np.minimum(blocks[:-width], blocks[width:]), 2 * width
    return result


@dataclass(slots=True)
class Places:
    """One element a row, without a value where nothing says it; None where nothing says it of any row."""

    pass_id: Int64 | None = None
    phase: Int64 | None = None  # codes of schema.PHASES
    ubatch: Int64 | None = None
    layer: Int64 | None = None
    tensor: Int64 | None = None  # codes of TextCodes
    whole_bytes: Int64 | None = None
    in_copy_step: Flags | None = None
    in_compute_step: Flags | None = None


@dataclass(frozen=True, slots=True)
class LaunchingCalls:
    """The host side of the rows: all CUDA calls as spans on their threads, and each row's call."""

    calls: GroupedSpans  # group: globalTid
    call: Int64  # for each row of the events: its row in `calls`, if any; a call is its own

    def gather(self, of_calls: Int64) -> Int64:
        """What was found for the calls, for each row; no value where a row has no call."""
        return taken(of_calls, self.call)
