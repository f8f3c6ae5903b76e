"""Moments at which two timelines can be laid on each other: where a ubatch, or a layer of a ubatch, starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from profiler.arithmetic.intervals import MAX_ABS_NS, Int64
from profiler.metrics.events import ints
from profiler.metrics.groups import Groups, Mask, group_by
from profiler.metrics.timeline import Timeline

_ANCHOR_COLUMNS: Final = ("ubatch", "layer")


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
    """The ubatches of a line's pass, from its rows of `ubatches`, else from when its events computed.

    Those without a number or with impossible times are left out.
    """
    if ubatches.num_rows == 0:
        return _spans_of_events(line)
    names = ("ubatch", "phase", "n_tokens", "policy", "t_start", "t_end")
    columns = (ubatches.sort_by("ubatch")[name].to_pylist() for name in names)
    return [
        Ubatch(number, phase, n_tokens, policy, start - line.origin_ns, end - line.origin_ns)
        for number, phase, n_tokens, policy, start, end in zip(*columns, strict=True)
        if None not in (number, start, end) and -MAX_ABS_NS <= start <= end <= MAX_ABS_NS
    ]


def layer_starts(line: Timeline, rows: Int64 | None = None, told: pa.Table | None = None) -> LayerStarts:
    """First compute of every (ubatch, layer) among some sorted rows; -1: a ubatch that the source does not say.

    rows: null means all. told: their ubatch and layer, where they are at hand.
    """
    rows = np.arange(len(line)) if rows is None else rows
    told = line.table(_ANCHOR_COLUMNS, rows) if told is None else told
    columns = {name: ints(told[name], np.int64) for name in _ANCHOR_COLUMNS}
    chosen = np.flatnonzero(_computes(line, rows) & (columns["layer"] >= 0))
    rows, groups = rows[chosen], group_by({name: values[chosen] for name, values in columns.items()})
    return LayerStarts(groups.keys["ubatch"], groups.keys["layer"], _earliest(groups, line.start[rows]))


def _spans_of_events(line: Timeline) -> list[Ubatch]:
    rows = np.flatnonzero(_computes(line, np.arange(len(line))))
    ubatch = ints(line.table(["ubatch"], rows)["ubatch"], np.int64)
    rows, groups = rows[ubatch >= 0], group_by({"ubatch": ubatch[ubatch >= 0]})
    starts = _earliest(groups, line.start[rows])
    ends = -_earliest(groups, -line.end[rows])
    spans = zip(groups.keys["ubatch"].tolist(), starts.tolist(), ends.tolist(), strict=True)
    return [Ubatch(number, None, None, None, start, end) for number, start, end in spans]


def _computes(line: Timeline, rows: Int64) -> Mask:
    """Which of the sorted rows lie in a lane that computes."""
    computing = np.array([lane.category in ("compute", "cpu_compute") for lane in line.lanes], np.bool_)
    found: Mask = computing[np.searchsorted(line.first, rows, side="right") - 1]
    return found


def _earliest(groups: Groups, times: Int64) -> Int64:
    """The smallest time of each group: written in falling order, the smallest stays."""
    falling = np.argsort(-times, kind="stable")
    earliest = np.empty(len(groups), np.int64)
    earliest[groups.of_row[falling]] = times[falling]
    return earliest
