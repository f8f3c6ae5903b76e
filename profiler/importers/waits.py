"""Ends that a wait of the host contradicts: those of the last rows of streams, which no later row can.

A call that waits for the whole device (`cudaDeviceSynchronize`) returns when all that was issued before it is done, so
what was launched before such a call cannot end after its return. Only last rows are judged so: where others end after
their wait too, the clocks of host and device differ, and nothing is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from profiler.arithmetic.groups import Mask
from profiler.arithmetic.intervals import Int64
from profiler.importers.dropping import MAX_OVERLAP_NS

OUTLASTS_WAIT: Final = "still running when the host had waited for its device"
DEVICE_WAITS: Final = ("cudaDeviceSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize")
_MIN_EXCESS: Final = 0.5  # of a row's length: less may be two clocks that differ by a millisecond


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


def outlasting(rows: LaunchedRows, waits: Waits) -> Mask:
    """The rows whose end is wrong, as their process had waited for them before; last rows of their streams.

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


def _end_after(rows: LaunchedRows, own: Int64, waits: Waits, process: int) -> Mask:
    """Which of the rows `own` end after the first wait that began when they had been launched."""
    of_process = np.flatnonzero(waits.process == process)
    in_order = of_process[np.argsort(waits.start[of_process], kind="stable")]
    first = np.searchsorted(waits.start[in_order], rows.launched[own])
    is_waited_for = first < len(in_order)
    returned = waits.end[in_order[np.minimum(first, len(in_order) - 1)]]
    start, end = rows.start[own], rows.end[own]
    excess = end - returned
    after: Mask = (
        is_waited_for & (start < returned) & (excess > MAX_OVERLAP_NS) & (excess > _MIN_EXCESS * (end - start))
    )
    return after
