"""What a timeline shows beside its rows: busy shares of bins where single events are too many, where ubatches and
layers start, and which work waited for which copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from executor.arrays import Flags, Int64
from profiler.arithmetic.groups import Groups, group_by
from profiler.arithmetic.intervals import MAX_ABS_NS, covered_length
from profiler.metrics.events import ints
from profiler.metrics.timeline import Timeline

Shares = npt.NDArray[np.float32]

N_BINS: Final = 2000


def bin_edges(extent: tuple[int, int], n_bins: int = N_BINS) -> Int64:
    """`n_bins` + 1 edges in ns that cover the extent; bins are equal to within one nanosecond, and none is empty."""
    first, last = extent
    whole, rest = divmod(max(last - first, n_bins), n_bins)
    number = np.arange(n_bins + 1, dtype=np.int64)
    return first + number * whole + number * rest // n_bins


def busy_shares(line: Timeline, edges: Int64) -> Shares:
    """How much of each bin each lane was busy, 0..1: (lanes, bins)."""
    shares = np.zeros((len(line.lanes), len(edges) - 1), np.float32)
    widths = np.diff(edges)
    for number, busy in enumerate(line.busy):
        shares[number] = covered_length(busy, edges[:-1], edges[1:]) / widths
    return shares


def exposed_shares(line: Timeline, edges: Int64) -> Shares:
    """How much of each bin was exposed copy, 0..1: (lanes, bins); 0 in lanes without host to device copies."""
    shares = np.zeros((len(line.lanes), len(edges) - 1), np.float32)
    widths = np.diff(edges)
    for number, found in enumerate(line.exposed):
        if found is not None:
            shares[number] = covered_length(found, edges[:-1], edges[1:]) / widths
    return shares


def bounded_window(line: Timeline, limit: int, wanted: tuple[int, int] | None = None) -> tuple[int, int]:
    """The longest stretch of time, around the middle of `wanted`, in which at most `limit` events start."""
    first, last = line.extent
    if len(line) <= limit:
        return first, last
    starts = np.sort(line.start, kind="stable")
    middle = first if wanted is None else (wanted[0] + wanted[1]) // 2
    at = int(np.searchsorted(starts, middle)) - limit // 2
    at = min(max(at, 0), len(starts) - limit)
    low = first if at == 0 else int(starts[at])
    high = last if at + limit >= len(starts) else int(starts[at + limit])
    return low, max(high, low + 1)


def joint_extent(lines: Sequence[Timeline]) -> tuple[int, int]:
    """First start and last end over all lines that have rows."""
    extents = [line.extent for line in lines if len(line)]
    return (min(e[0] for e in extents), max(e[1] for e in extents)) if extents else (0, 0)


_ANCHOR_COLUMNS: Final = ("ubatch", "layer")


@dataclass(frozen=True, slots=True)
class UbatchSpan:
    """Where a ubatch starts and ends, ns after the line's origin; None: the source does not say."""

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


def ubatch_spans(line: Timeline, ubatches: pa.Table) -> list[UbatchSpan]:
    """The ubatches of a line's pass, from its rows of `ubatches`, else from when its events computed.

    Those without a number or with impossible times are left out.
    """
    if ubatches.num_rows == 0:
        return _spans_of_events(line)
    names = ("ubatch", "phase", "n_tokens", "policy", "t_start", "t_end")
    columns = (ubatches.sort_by("ubatch")[name].to_pylist() for name in names)
    return [
        UbatchSpan(number, phase, n_tokens, policy, start - line.origin_ns, end - line.origin_ns)
        for number, phase, n_tokens, policy, start, end in zip(*columns, strict=True)
        if None not in (number, start, end) and -MAX_ABS_NS <= start <= end <= MAX_ABS_NS
    ]


def layer_starts(line: Timeline, rows: Int64 | None = None, told: pa.Table | None = None) -> LayerStarts:
    """First compute of every (ubatch, layer) among some sorted rows; -1: a ubatch that the source does not say.

    rows: None means all. told: their ubatch and layer, where they are at hand.
    """
    rows = np.arange(len(line)) if rows is None else rows
    told = line.table(_ANCHOR_COLUMNS, rows) if told is None else told
    columns = {name: ints(told[name], np.int64) for name in _ANCHOR_COLUMNS}
    chosen = np.flatnonzero(_computes(line, rows) & (columns["layer"] >= 0))
    rows, groups = rows[chosen], group_by({name: values[chosen] for name, values in columns.items()})
    return LayerStarts(groups.keys["ubatch"], groups.keys["layer"], _earliest(groups, line.start[rows]))


def _spans_of_events(line: Timeline) -> list[UbatchSpan]:
    rows = np.flatnonzero(_computes(line, np.arange(len(line))))
    ubatch = ints(line.table(["ubatch"], rows)["ubatch"], np.int64)
    rows, groups = rows[ubatch >= 0], group_by({"ubatch": ubatch[ubatch >= 0]})
    starts = _earliest(groups, line.start[rows])
    ends = -_earliest(groups, -line.end[rows])
    spans = zip(groups.keys["ubatch"].tolist(), starts.tolist(), ends.tolist(), strict=True)
    return [UbatchSpan(number, None, None, None, start, end) for number, start, end in spans]


def _computes(line: Timeline, rows: Int64) -> Flags:
    """Which of the sorted rows lie in a lane that computes."""
    computing = np.array([lane.category in ("compute", "cpu_compute") for lane in line.lanes], np.bool_)
    found: Flags = computing[np.searchsorted(line.first, rows, side="right") - 1]
    return found


def _earliest(groups: Groups, times: Int64) -> Int64:
    """The smallest time of each group: written in falling order, the smallest stays."""
    falling = np.argsort(-times, kind="stable")
    earliest = np.empty(len(groups), np.int64)
    earliest[groups.of_row[falling]] = times[falling]
    return earliest


_COPIES: Final = ("h2d", "d2h", "d2d")


def waited_for(rows: pa.Table) -> tuple[Int64, Int64]:
    """Pairs (row of a copy, row that waited for it), in the order of the waiting rows.

    rows: columns kind, correlation_id and waits_for of one pass; copy numbers are unique inside a pass.
    """
    is_copy = pc.is_in(rows["kind"].cast(pa.string()), pa.array(_COPIES)).to_numpy()
    numbers, wanted = (pc.fill_null(rows[name], -1).to_numpy() for name in ("correlation_id", "waits_for"))
    copies, waiting = np.flatnonzero(is_copy & (numbers >= 0)), np.flatnonzero(wanted >= 0)
    if len(copies) == 0:
        return copies, copies
    copies = copies[np.argsort(numbers[copies], kind="stable")]
    place = np.minimum(np.searchsorted(numbers[copies], wanted[waiting]), len(copies) - 1)
    found = numbers[copies[place]] == wanted[waiting]
    return copies[place[found]], waiting[found]
