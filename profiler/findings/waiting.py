"""Rules about time in which something stood still: the copy engine, the device, or work whose copy came late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from profiler.findings import words
from profiler.findings.finding import Finding, severity_of
from profiler.findings.view import View
from profiler.intervals import union
from profiler.joins import NONE, match

_LONG_GAP_NS: Final = 100_000
_AFTER_ROUTER: Final = ("missing", "missed", "selective")  # copies that cannot be issued before the router's choice


def idle_copy_engine(view: View) -> Iterator[Finding]:
    """The copy engine idles between copies while others that nothing hides are still to come.

    Said of devices that copy mostly on streams of their own; `copies-on-compute-stream` covers the others.
    """
    copy_ns = view.length_by_group(view.busy_weights)
    exposed_ns = copy_ns - view.hidden_by_group(view.busy_weights)
    first, last = view.spans(view.weights)
    idle_ns = view.sum(view.group_of_context, last - first) - copy_ns
    in_line_ns = view.sum(view.in_line.group, view.in_line.length)
    for group in np.flatnonzero((copy_ns > 0) & (in_line_ns * 2 < copy_ns)).tolist():
        lost_ns = int(min(idle_ns[group], exposed_ns[group]))
        severity = severity_of(lost_ns, view.window_ns[group])
        if severity is None:
            continue
        yield Finding(
            "idle-copy-engine",
            severity,
            f"{view.groups[group].label}: the copy engine was idle for {words.duration(idle_ns[group])} between its "
            f"first and last copy, while {words.duration(exposed_ns[group])} of "
            f"{words.duration(copy_ns[group])} of copies were not hidden by compute.",
            f"Issue copies earlier: up to {words.duration(lost_ns)} could have been copied in those gaps. They come "
            "from too few slots (a copy waits until its buffer has been read: try one more), from a host that is "
            "late to issue (look for synchronisations), or from copies that wait for the router.",
        )


def late_prefetch(view: View) -> Iterator[Finding]:
    """Copies on the copy stream that began only when the work that reads them stood ready."""
    waits = np.flatnonzero(view.is_any("kind", ["wait"]) & (view.ints["waits_for"] > 0))
    if len(waits) == 0:
        return
    h2d, scope = view.h2d.row, view.scope
    copy = match(scope[waits], view.ints["waits_for"][waits], scope[h2d], view.ints["correlation_id"][h2d])
    waits, copy = waits[copy != NONE], h2d[copy[copy != NONE]]
    stream, start, end = view.codes("stream"), view.ints["t_start"], view.ints["t_end"]
    ahead = (stream[copy] != stream[waits]) & ~_after_router(view)[view.codes("name")[copy]]
    waits, copy = waits[ahead], copy[ahead]
    late = start[copy] >= start[waits]
    group = view.group_of_context[view.context_of_row[copy]]
    lost = np.where(late, np.maximum(np.minimum(start[copy], end[waits]) - start[waits], 0), 0)
    for number in np.unique(group[late]).tolist():
        mine = group == number
        severity = severity_of(int(lost[mine].sum()), view.window_ns[number])
        if severity is None:
            continue
        yield Finding(
            "late-prefetch",
            severity,
            f"{view.groups[number].label}: {np.count_nonzero(late & mine):,} of {np.count_nonzero(mine):,} prefetched "
            f"copies that were waited for began after the layer that reads them was ready, "
            f"{words.duration(lost[mine].sum())} too late in all.",
            "Issue the copy one layer earlier, before the previous layer's kernels are queued, and keep a slot free "
            "for it (one more slot where all are in use).",
        )


def device_idle(view: View) -> Iterator[Finding]:
    """Gaps in which a device neither computed nor copied, nor the host computed in its place."""
    busy = union(view.everything.start, view.everything.end)
    context = view.context_of(busy.starts)
    gaps = np.where(context[1:] == context[:-1], busy.starts[1:] - busy.ends[:-1], 0)
    group = view.group_of_context[context[1:]]
    idle_ns = view.sum(group, gaps)
    for number in np.flatnonzero(idle_ns).tolist():
        severity = severity_of(idle_ns[number], view.window_ns[number])
        if severity is None:
            continue
        mine = gaps[group == number]
        yield Finding(
            "device-idle",
            # A trace can hold start-up or a pause that nobody minds.
            "warning" if severity == "serious" else severity,
            f"{view.groups[number].label}: neither computing nor copying for {words.duration(idle_ns[number])} of "
            f"{words.duration(view.window_ns[number])} ({words.share(idle_ns[number], view.window_ns[number])}); "
            f"{words.count(int(np.count_nonzero(mine >= _LONG_GAP_NS)), 'gap')} of 0.1 ms or more, the longest "
            f"{words.duration(mine.max())}.",
            "Look at what the host does there: synchronisations, many small launches (CUDA graphs help), work on "
            "the CPU, or waiting for input; leave start-up out with a capture range.",
        )


def _after_router(view: View) -> np.ndarray:
    texts = view.labels["name"][1]
    return np.array([any(word in text for word in _AFTER_ROUTER) for text in texts] + [False], np.bool_)
