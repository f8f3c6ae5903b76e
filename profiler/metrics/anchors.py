"""Moments at which two timelines can be laid on each other: where a ubatch, or a layer of a ubatch, starts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profiler.intervals import Int64
from profiler.metrics.groups import Groups, group_by
from profiler.metrics.timeline import Timeline, rows_between


@dataclass(frozen=True, slots=True)
class Ubatch:
    """Where a ubatch starts and ends, ns after the line's origin; null: the source does not say."""

    number: int
    phase: str | None
    n_tokens: int | None
    policy: str | None
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class LayerStarts:
    """Parallel arrays: the first compute of each layer of each ubatch, ns after the line's origin."""

    ubatch: Int64
    layer: Int64
    start_ns: Int64


def ubatch_spans(line: Timeline, ubatches: pa.Table) -> list[Ubatch]:
    """The ubatches of a line's pass, from its rows of `ubatches`, else from when its events computed."""
    if ubatches.num_rows == 0:
        return _spans_of_events(line)
    rows = ubatches.sort_by("ubatch").to_pylist()
    return [
        Ubatch(
            r["ubatch"], r["phase"], r["n_tokens"], r["policy"], *(r[t] - line.origin_ns for t in ("t_start", "t_end"))
        )
        for r in rows
        if None not in (r["ubatch"], r["t_start"], r["t_end"])
    ]


def layer_starts(line: Timeline, window: tuple[int, int] | None = None) -> LayerStarts:
    """First compute of every (ubatch, layer) that starts in the window; -1: a ubatch that the source does not say."""
    rows = _computing(line, window or line.extent)
    rows = rows[line.events.layer[line.order[rows]] >= 0]
    groups = _grouped(line, rows, "ubatch", "layer")
    return LayerStarts(groups.keys["ubatch"], groups.keys["layer"], _earliest(groups, line.start[rows]))


def _spans_of_events(line: Timeline) -> list[Ubatch]:
    rows = _computing(line, line.extent)
    rows = rows[line.events.ubatch[line.order[rows]] >= 0]
    groups = _grouped(line, rows, "ubatch")
    starts = _earliest(groups, line.start[rows])
    ends = -_earliest(groups, -line.end[rows])
    spans = zip(groups.keys["ubatch"].tolist(), starts.tolist(), ends.tolist(), strict=True)
    return [Ubatch(number, None, None, None, start, end) for number, start, end in spans]


def _computing(line: Timeline, window: tuple[int, int]) -> Int64:
    """Sorted rows, of every lane that computes, that touch the window."""
    lanes = [i for i, lane in enumerate(line.lanes) if lane.category in ("compute", "cpu_compute")]
    rows = [rows_between(line, lane, window) for lane in lanes]
    return np.concatenate([np.empty(0, np.int64), *(np.arange(r.start, r.stop) for r in rows)])


def _grouped(line: Timeline, rows: Int64, *names: str) -> Groups:
    return group_by({name: getattr(line.events, name)[line.order[rows]] for name in names})


def _earliest(groups: Groups, times: Int64) -> Int64:
    """The smallest time of each group: written in falling order, the smallest stays."""
    falling = np.argsort(-times, kind="stable")
    earliest = np.empty(len(groups), np.int64)
    earliest[groups.of_row[falling]] = times[falling]
    return earliest
