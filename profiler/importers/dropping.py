"""Rows that cannot be, by one set of rules for every importer of device traces.

A row that is left out is counted under the first reason that it meets, as `Imported.dropped`:

* its times: none, an end before the start, longer than a day, more than 30 days from the others;
* its stream: work on one stream is serial, so a row that ends well after its successor began has a wrong time
  (a last row, which has none, is held against waits of the host);
* its launch: a device that begins an hour before or after what the other calls and their work take has a wrong clock.

Rules take int64 arrays in ns, so that rows may lie in numpy or in arrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from executor.arrays import Flags, Floats, Int64

MAX_NS: Final = 2**62
"""No time lies beyond, so that a start and a duration still add up."""
_HOUR_NS: Final = 3600 * 10**9
MAX_DURATION_NS: Final = 24 * _HOUR_NS
MAX_FROM_MEDIAN_NS: Final = 30 * 24 * _HOUR_NS
MAX_FROM_LAUNCH_NS: Final = _HOUR_NS
# Clocks jitter by 1 us; a dependent launch lets two kernels of a stream overlap, by 12 us in the traces at hand.
MAX_OVERLAP_NS: Final = 100_000
# A stream on which more rows than this overlap is none in CUDA's sense (a queue of another vendor, several ranks),
_MAX_DAMAGED_SHARE: Final = 0.1
# unless they are at most this many, stand out by their length from those that remain, and differ among themselves:
# a short stream with a few wrong ends. Long kernels of another queue come again with the same length.
_MAX_OUTLIER_SHARE: Final = 1 / 3
_MIN_OUTLIER_FACTOR: Final = 2.0
_ALIKE_WITHIN: Final = 1.25
_FEW_OUTLIERS: Final = 2  # too few to tell whether they come again
_MAX_ROUNDS: Final = 16
_FEW_STREAMS: Final = 16  # looked through one by one sooner than sorted together

OVERRUNS: Final = "still running when later rows of its stream began"
FAR_FROM_LAUNCH: Final = "more than an hour from its launch"
OUTLASTS_WAIT: Final = "still running when the host had waited for its device"
DEVICE_WAITS: Final = ("cudaDeviceSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize")
_MIN_EXCESS: Final = 0.5  # of a row's length: less may be two clocks that differ by a millisecond


def kept_rows(what: str, reasons: Mapping[str, Flags], dropped: Counter[str]) -> Flags:
    """The rows that none of `reasons` marks; the others are counted in `dropped` as "WHAT: REASON"."""
    bad = np.zeros(len(next(iter(reasons.values()))), np.bool_)
    for reason, mask in reasons.items():
        if count := int(np.count_nonzero(mask & ~bad)):
            dropped[f"{what}: {reason}"] += count
            bad |= mask
    return ~bad


def scaled_ns(values: Int64, unit_ns: int) -> tuple[Int64, Flags]:
    """Times in whole units of `unit_ns` as ns, and which of them fit; the others are 0, and rows without a time.

    A product that int64 cannot hold would wrap into a time that looks right.
    """
    limit = MAX_NS // unit_ns
    fits = (values > -limit) & (values < limit)
    return np.where(fits, values, 0) * unit_ns, fits


def impossible_times(start: Int64, end: Int64, is_unknown: Flags) -> dict[str, Flags]:
    """Times that cannot be, in ns; is_unknown: rows that have none."""
    # The difference of two hostile int64 can overflow, that of their floats cannot.
    is_long = end.astype(np.float64) - start.astype(np.float64) > MAX_DURATION_NS
    return {"no times": is_unknown, "end before start": end < start, "longer than a day": is_long}


def time_limits(start: Int64) -> tuple[int, int]:
    """30 days before and after the median start; what lies outside has a wrong clock (a known fault writes 0)."""
    middle = int(np.partition(start, len(start) // 2)[len(start) // 2]) if len(start) else 0
    lowest, highest = np.iinfo(np.int64).min + 1, np.iinfo(np.int64).max - MAX_DURATION_NS
    return max(middle - MAX_FROM_MEDIAN_NS, lowest), min(middle + MAX_FROM_MEDIAN_NS, highest)


def far_times(start: Int64, limits: tuple[int, int]) -> dict[str, Flags]:
    """Starts outside of `time_limits`."""
    return {"more than 30 days from the others": (start < limits[0]) | (start > limits[1])}


def far_from_launch(start: Int64, call_start: Int64) -> Flags:
    """Rows that began more than an hour earlier or later after their call than the median row; ns, one a row.

    The median takes out a device clock that is off by the same amount throughout.
    """
    after = start - call_start
    if len(after) == 0 or int(after.max()) - int(after.min()) <= MAX_FROM_LAUNCH_NS:
        return np.zeros(len(after), np.bool_)
    far: Flags = np.abs(after - np.partition(after, len(after) // 2)[len(after) // 2]) > MAX_FROM_LAUNCH_NS
    return far


def overrunning(stream: Int64, start: Int64, end: Int64, call: Int64) -> tuple[Flags, int]:
    """The rows whose times are wrong since later work of their stream began before they ended, and how many overlap
    on streams that are not serial.

    stream: a number from 0 for each stream, negative where a row is on none. start, end: ns. call: a number for what
    launched the row, negative where unknown; rows of one call (of a CUDA graph) may run side by side. Where more than
    a tenth of a stream's rows overlap, and they do not stand out by their length, it is not serial: none of them is
    marked, and they are counted.
    """
    bad = _without_rows_of_one_call(_overruns(stream, start, end), stream, call)
    if len(bad) == 0:
        return np.zeros(len(stream), np.bool_), 0
    n_streams = int(stream.max()) + 1
    n_rows, n_bad = (np.bincount(of, minlength=n_streams) for of in (stream[stream >= 0], stream[bad]))
    is_serial = n_bad <= np.maximum(_MAX_DAMAGED_SHARE * n_rows, 1)
    if not is_serial.all():
        is_few = n_bad <= _MAX_OUTLIER_SHARE * n_rows
        is_serial |= is_few & _stand_out(bad, n_bad, stream, end.astype(np.float64) - start)
    damaged = bad[is_serial[stream[bad]]]
    marked = np.zeros(len(stream), np.bool_)
    marked[damaged] = True
    return marked, len(bad) - len(damaged)


def _stand_out(bad: Int64, n_bad: Int64, stream: Int64, length_ns: Floats) -> Flags:
    """Whether a stream's rows `bad` are longer by far than all its others, and not of one length; one a stream.

    n_bad: how many each stream has.
    """
    kept = stream >= 0
    kept[bad] = False
    longest_kept, longest = (np.zeros(len(n_bad)) for _ in range(2))
    shortest = np.full(len(n_bad), np.inf)
    np.maximum.at(longest_kept, stream[kept], length_ns[kept])
    np.maximum.at(longest, stream[bad], length_ns[bad])
    np.minimum.at(shortest, stream[bad], length_ns[bad])
    differ = (n_bad <= _FEW_OUTLIERS) | (longest > _ALIKE_WITHIN * shortest)
    found: Flags = (shortest > _MIN_OUTLIER_FACTOR * longest_kept) & differ
    return found


def remark_overlaps(n_rows: int) -> list[str]:
    """What a reader of the figures must know of streams that are not serial."""
    if not n_rows:
        return []
    return [
        f"Device rows overlap {n_rows:,} times on streams where NVIDIA GPUs work on one at a time: several streams or "
        "processes may share a number in this trace, or its clock is wrong."
    ]


def _overruns(stream: Int64, start: Int64, end: Int64) -> Int64:
    """Rows that ended after the next one of their stream began, by more than MAX_OVERLAP_NS.

    Of two that overlap, the one that also outlasts the other goes first: a row that began too early by a wrong clock
    leaves those before it in peace.
    """
    order = _by_stream_and_start(stream, start, end)
    found: list[Int64] = []
    for _ in range(_MAX_ROUNDS):
        row, following = order[:-1], order[1:]
        overlaps = end[row] > start[following] + MAX_OVERLAP_NS
        if not overlaps.any():
            break
        overlaps &= (stream[row] == stream[following]) & (start[row] < start[following])
        outlasts = overlaps & (end[row] > end[following] + MAX_OVERLAP_NS)
        goes = np.append(outlasts if outlasts.any() else overlaps, False)
        if not goes.any():
            break
        found.append(order[goes])
        order = order[~goes]
    return np.concatenate(found) if found else order[:0]


def _by_stream_and_start(stream: Int64, start: Int64, end: Int64) -> Int64:
    """The rows on streams, by stream, start and end."""
    n_streams = int(stream.max(initial=-1)) + 1
    if n_streams > _FEW_STREAMS:
        order = np.lexsort((end, start, stream))
        return order[stream[order] >= 0]
    parts = [np.flatnonzero(stream == number) for number in range(n_streams)]
    return np.concatenate([np.empty(0, np.int64), *(_sorted(rows, start, end) for rows in parts)])


def _sorted(rows: Int64, start: Int64, end: Int64) -> Int64:
    # A stream's rows are mostly recorded in order, and strictly so.
    return rows if (np.diff(start[rows]) > 0).all() else rows[np.lexsort((end[rows], start[rows]))]


def _without_rows_of_one_call(bad: Int64, stream: Int64, call: Int64) -> Int64:
    """Those of `bad` that are the only row of their call on their stream, or whose call is unknown."""
    bad = np.sort(bad)
    related = np.flatnonzero(np.isin(call, call[bad]) & (call >= 0) & (stream >= 0))
    if len(related) == 0:
        return bad
    _, code, count = np.unique(
        np.stack([stream[related], call[related]]), axis=1, return_inverse=True, return_counts=True
    )
    return np.setdiff1d(bad, related[count[code.ravel()] > 1])


@dataclass(frozen=True, slots=True)
class Waits:
    """Calls that wait for a whole device: their process, and when they began and returned, ns."""

    process: Int64
    start: Int64
    end: Int64


@dataclass(frozen=True, slots=True)
class LaunchedRows:
    """Device rows with a known launch. stream, context and process are numbers; times are ns.

    launched: when the call that launched the row returned.
    """

    stream: Int64
    context: Int64
    process: Int64
    start: Int64
    end: Int64
    launched: Int64


def outlasting(rows: LaunchedRows, waits: Waits) -> Flags:
    """The rows whose end is wrong, as their process had waited for them before; last rows of their streams.

    A call that waits for the whole device (`cudaDeviceSynchronize`) returns when all that was issued before it is done,
    so what was launched before such a call cannot end after its return. Only last rows are judged so: where others end
    after their wait too, the clocks of host and device differ, and nothing is known.

    A process that works in several contexts is left alone: a wait is for one of them.
    """
    marked = np.zeros(len(rows.start), np.bool_)
    if len(rows.start) == 0:
        return marked
    newest = np.full(int(rows.stream.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(newest, rows.stream, rows.start)
    is_last = rows.start == newest[rows.stream]
    for process in np.unique(waits.process).tolist():
        own = np.flatnonzero(rows.process == process)
        if len(np.unique(rows.context[own])) != 1:
            continue
        bad = own[_end_after(rows, own, waits, process)]
        if is_last[bad].all():
            marked[bad] = True
    return marked


def _end_after(rows: LaunchedRows, own: Int64, waits: Waits, process: int) -> Flags:
    """Which of the rows `own` end after the first wait that began when they had been launched."""
    of_process = np.flatnonzero(waits.process == process)
    in_order = of_process[np.argsort(waits.start[of_process], kind="stable")]
    first = np.searchsorted(waits.start[in_order], rows.launched[own])
    is_waited_for = first < len(in_order)
    returned = waits.end[in_order[np.minimum(first, len(in_order) - 1)]]
    start, end = rows.start[own], rows.end[own]
    excess = end - returned
    after: Flags = (
        is_waited_for & (start < returned) & (excess > MAX_OVERLAP_NS) & (excess > _MIN_EXCESS * (end - start))
    )
    return after
