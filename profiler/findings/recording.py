"""Rules about the recording: what it does not show or lost, and intervals in an order that cannot be right."""

from __future__ import annotations

from collections.abc import Iterator

from executor.units import format_count, format_ns
from profiler.findings.analysis import CopyAnalysis
from profiler.findings.finding import Finding, Moment
from profiler.metrics.ordering import Ordering
from profiler.schema import ROLES


def cuda_graphs(view: CopyAnalysis) -> Iterator[Finding]:
    """Graph launches recorded as a whole: the kernels and copies inside have no rows."""
    rows = view.rows(view.role == ROLES.index("graph"))
    lost = view.length(rows.busy)
    inside = _recorder(view, "record --graphs node", "profile --cuda-graph-trace=node")
    for told in view.judged(lost, floor="info"):
        number = round(view.typical(told.group, view.count(rows)))
        yield Finding(
            "cuda-graphs",
            told.severity,
            f"{told.label}: {format_count(number, 'CUDA graph launch')} took "
            f"{format_ns(view.typical(told.group, lost))}, and what ran inside them was not recorded: it counts "
            "neither as compute nor as copies, and hides nothing.",
            f"Record with `{inside}` to see inside, or compare without graphs.",
            view.costliest(rows, told.group),
        )


def _recorder(view: CopyAnalysis, of_hprof: str, of_nsys: str) -> str:
    """The command of the tool that recorded."""
    return f"hprof {of_hprof}" if view.manifest.source == "cupti" else f"nsys {of_nsys}"


def dropped_rows(view: CopyAnalysis) -> Iterator[Finding]:
    """Rows of the source that could not be used."""
    dropped = {reason: number for reason, number in view.manifest.dropped.items() if number > 0}
    if not dropped:
        return
    listed = "; ".join(f"{number:,} {reason}" for reason, number in sorted(dropped.items(), key=lambda d: -d[1])[:5])
    yield Finding(
        "dropped-events",
        "warning",
        f"{format_count(sum(dropped.values()), 'row')} of the source left out: {listed}.",
        "Figures cover the rest. If it is more than a handful, the file is damaged: export or record it again.",
    )


def lost_events(view: CopyAnalysis) -> Iterator[Finding]:
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
        f"Record for a shorter time or fewer things (`{_recorder(view, 'record --for S', 'profile -t cuda,nvtx')}`); "
        "until then read the figures as lower bounds.",
    )


def ordering_faults(ordering: Ordering) -> Iterator[Finding]:
    """Steps and copies of an engine that run in the wrong order: what the step computes may be wrong."""
    if ordering.is_clean is False:
        yield Finding(
            "ordering",
            "serious",
            f"{ordering.n_early()}: {'; '.join(map(str, ordering.faults[:3]))}.",
            "Trust neither tokens nor times of these passes, even where logits agree: a wait between the copy and "
            "the step is missing, or waits for the wrong event.",
            tuple(Moment(fault.pass_id, fault.t_start, fault.t_end) for fault in ordering.faults[:3]),
        )
