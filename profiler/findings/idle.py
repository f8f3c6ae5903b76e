"""Rules about standing still: the copy engine, what waits for a copy, the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from executor.arrays import Int64
from executor.units import format_count, format_ns, format_share
from profiler.arithmetic.intervals import covered_length
from profiler.arithmetic.joins import match
from profiler.findings.analysis import CopyAnalysis
from profiler.findings.finding import Finding
from profiler.schema import ABSENT, WAIT

_LONG_GAP_NS: Final = 100_000
_WORTH_A_SLOT: Final = 0.02  # of the pass; for less, nobody should give up device memory
_IDLE_GPU: Final = (
    "Look at what the host does there: synchronisations, many small launches (CUDA graphs help), work on the CPU, or "
    "waiting for input; leave start-up out with a capture range."
)
_IDLE_DEVICE: Final = "Look at what the host does there: synchronisations, many small steps, or other work on the CPU."
_AFTER_ROUTER: Final = ("missing", "missed", "selective")  # copies that cannot be issued before the router's choice


def idle_copy_engine(view: CopyAnalysis) -> Iterator[Finding]:
    """The copy engine idles between copies while others that nothing hides are still to come.

    Said of devices that copy mostly on streams of their own, and of those copies alone; what is copied in line keeps
    the engine busy too, and is for `copies-on-compute-stream` to judge.
    """
    busy = view.ahead.busy
    copied, exposed = view.length(busy), view.exposed(busy)
    unhidden = view.ahead.length - view.time.hidden_ns(view.ahead.start, view.ahead.end)
    first, last = view.spans(view.ahead)
    idle = last - first - covered_length(view.busy_h2d, first, last)
    in_line = view.length(view.in_line.busy)
    gain = np.where(in_line < copied, np.minimum(idle, exposed), 0)
    lost = np.where(gain >= _WORTH_A_SLOT * view.window_ns, gain, 0)
    for told in view.judged(lost):
        lost_ns, idle_ns, exposed_ns, copied_ns = (
            view.typical(told.group, values) for values in (lost, idle, exposed, copied)
        )
        yield Finding(
            "idle-copy-engine",
            told.severity,
            f"{told.label}: the copy engine was idle for {format_ns(idle_ns)} between the first and last copy "
            f"that ran ahead, while {format_ns(exposed_ns)} of their {format_ns(copied_ns)} were not hidden "
            "by compute.",
            f"Issue copies earlier: up to {format_ns(lost_ns)} could have been copied in those gaps. They come "
            "from too few slots (a copy waits until its buffer has been read: try one more), from a host that is "
            "late to issue (look for synchronisations), or from copies that wait for the router.",
            view.costliest(view.ahead, told.group, unhidden),
        )


def late_prefetch(view: CopyAnalysis) -> Iterator[Finding]:
    """Copies on the copy stream that began only when the work that reads them stood ready, and so held it up whole.

    Nothing comes before a pass's first, so what that one takes is not lost.
    """
    waits = np.flatnonzero((view.role == WAIT) & (view.ints["waits_for"] > 0))
    if len(waits) == 0:
        return
    h2d, scope = view.h2d.row, view.scope
    found = match(scope[waits], view.ints["waits_for"][waits], scope[h2d], view.ints["correlation_id"][h2d])
    waits, copy = waits[found.row], h2d[found.other]
    stream, start, end = view.codes("stream"), view.ints["t_start"], view.ints["t_end"]
    ahead = (stream[copy] != stream[waits]) & ~_after_router(view)[view.codes("name")[copy]]
    waits, copy = waits[ahead], copy[ahead]
    late = start[copy] >= start[waits]
    context = view.context_of_row[copy]
    is_first = start[waits] == _earliest(start[waits], context)
    late_ns = np.where(late & ~is_first, end[waits] - start[waits], 0)
    lost, n_late, n_waited = (view.sum(context, values) for values in (late_ns, late, np.ones(len(late))))
    for told in view.judged(lost):
        late_count, all_count = (round(view.typical(told.group, counts)) for counts in (n_late, n_waited))
        yield Finding(
            "late-prefetch",
            told.severity,
            f"{told.label}: {late_count:,} of {all_count:,} prefetched copies that were waited for began only when the "
            f"layer that reads them was ready, and held it up for {format_ns(view.typical(told.group, lost))} in all.",
            "Issue the copy one layer earlier, before the previous layer's kernels are queued, and keep a slot free "
            "for it (one more slot where all are in use).",
            view.worst(waits, view.groups.of_context[context] == told.group, late_ns),
        )


def _earliest(times: Int64, group: Int64) -> Int64:
    """The earliest time of each one's group."""
    first = np.full(int(group.max(initial=ABSENT)) + 2, np.iinfo(np.int64).max)  # the last is that of ABSENT
    np.minimum.at(first, group, times)
    return first[group]


def device_idle(view: CopyAnalysis) -> Iterator[Finding]:
    """Gaps in which a device did nothing, and the host did not compute in its place either; nothing of devices whose
    copies were not recorded."""
    on_host = view.idle_ns - view.idle_unexplained_ns
    context, begins, gaps = view.idle_gaps()
    n_long = view.sum(context, gaps >= _LONG_GAP_NS)
    longest = np.zeros(len(n_long), np.int64)
    np.maximum.at(longest, context, gaps)
    for told in view.judged(view.idle_unexplained_ns):
        idle_ns, window_ns, on_host_ns = (
            view.typical(told.group, values) for values in (view.idle_ns, view.window_ns, on_host)
        )
        n_gaps = round(view.typical(told.group, n_long))
        meanwhile = f", {format_ns(on_host_ns)} of it while the host computed in its place" if on_host_ns else ""
        yield Finding(
            "device-idle",
            # A trace can hold start-up or a pause that nobody minds.
            "warning" if told.severity == "serious" else told.severity,
            f"{told.label}: idle for {format_ns(idle_ns)} of {format_ns(window_ns)} "
            f"({format_share(idle_ns / window_ns)}){meanwhile}; "
            f"{_gaps(n_gaps, longest[view.groups.of_context == told.group].max())}.",
            _IDLE_GPU if view.is_gpu else _IDLE_DEVICE,
            view.longest(context, begins, gaps, told.group),
        )


def _gaps(n_long: int, longest_ns: int) -> str:
    if longest_ns < _LONG_GAP_NS:
        return f"no gap is longer than {format_ns(longest_ns)}"
    return f"{format_count(n_long, 'gap')} of 0.1 ms or more, the longest {format_ns(longest_ns)}"


def _after_router(view: CopyAnalysis) -> np.ndarray:
    texts = view.labels["name"][1]
    return np.array([any(word in text for word in _AFTER_ROUTER) for text in texts] + [False], np.bool_)
