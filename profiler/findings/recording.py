"""Rules about the recording itself: what it does not show, and what it lost."""

from __future__ import annotations

from collections.abc import Iterator

from profiler.findings import words
from profiler.findings.finding import Finding
from profiler.findings.view import View


def cuda_graphs(view: View) -> Iterator[Finding]:
    """Graph launches recorded as a whole: the kernels and copies inside have no rows."""
    rows = view.rows(view.codes("detail") == view.code("detail", "graph"))
    lost = view.sum(rows.context, rows.length)
    for told in view.judged(lost, floor="info"):
        number = round(view.typical(told.group, view.count(rows)))
        yield Finding(
            "cuda-graphs",
            told.severity,
            f"{told.label}: {words.count(number, 'CUDA graph launch')} took "
            f"{words.duration(view.typical(told.group, lost))}, and what ran inside them was not recorded: it counts "
            "neither as compute nor as copies, and hides nothing.",
            "Record with `nsys profile --cuda-graph-trace=node` to see inside, or compare without graphs.",
        )


def unified_memory(view: View) -> Iterator[Finding]:
    """Pages that migrate when a kernel touches them: no prefetch, whatever the overlap looks like."""
    is_uvm = view.codes("detail") == view.code("detail", "uvm")
    rows = view.rows(is_uvm & (view.codes("kind") == view.code("kind", "h2d")))
    lost = view.sum(rows.context, rows.length)
    moved = view.sum(rows.context, view.ints["bytes"][rows.row].clip(0))
    for told in view.judged(lost):
        n_bytes, ns, number = (view.typical(told.group, values) for values in (moved, lost, view.count(rows)))
        yield Finding(
            "unified-memory",
            told.severity,
            f"{told.label}: {words.size(n_bytes)} migrated to the device in {words.count(round(number), 'piece')} at "
            f"{words.rate(n_bytes, ns)}, while kernels stood still for the pages.",
            "Prefetch the range (cudaMemPrefetchAsync) or hold the weights in pinned memory and copy them.",
        )


def dropped_rows(view: View) -> Iterator[Finding]:
    """Rows of the source that could not be used."""
    dropped = {reason: number for reason, number in view.manifest.dropped.items() if number > 0}
    if not dropped:
        return
    listed = "; ".join(f"{number:,} {reason}" for reason, number in sorted(dropped.items(), key=lambda d: -d[1])[:5])
    yield Finding(
        "dropped-events",
        "warning",
        f"{words.count(sum(dropped.values()), 'row')} of the source left out: {listed}.",
        "Figures cover the rest. If it is more than a handful, the file is damaged: export or record it again.",
    )


def lost_events(view: View) -> Iterator[Finding]:
    """The profiler said itself that it lost events, or met an error."""
    said = view.manifest.extra.get("profiler_errors")
    texts = [str(text) for text in said] if isinstance(said, list) else []
    if not texts:
        return
    yield Finding(
        "lost-events",
        "warning",
        f"The profiler reported: {' | '.join(text[:200] for text in texts[:3])}"
        + (f" (and {len(texts) - 3} more)" if len(texts) > 3 else ""),
        "Record for a shorter time or with fewer event types (`nsys profile -t cuda,nvtx`); until then read the "
        "figures as lower bounds.",
    )
