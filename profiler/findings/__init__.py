"""Findings: what a capture shows that someone should change, as data.

A rule is a function from a `CopyAnalysis` of the events to any number of findings. To add one, write it and list it in
RULES; it must say figures in its evidence and what to do in its advice, and stay silent below 1 % of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from profiler.findings import copies, idle, recording
from profiler.findings.analysis import CopyAnalysis
from profiler.findings.finding import SEVERITIES, Finding, Moment, Severity
from profiler.metrics.ordering import Ordering, check_ordering

if TYPE_CHECKING:
    from profiler.capture import Capture

__all__ = ["RULES", "CopyAnalysis", "Finding", "Moment", "Severity", "find", "find_in"]

RULES: Final[tuple[Callable[[CopyAnalysis], Iterable[Finding]], ...]] = (
    copies.pageable_copies,
    copies.copies_on_compute_stream,
    copies.synchronous_copies,
    idle.idle_copy_engine,
    idle.late_prefetch,
    copies.small_copies,
    copies.exposed_copies_to_host,
    idle.device_idle,
    copies.unified_memory,
    recording.cuda_graphs,
    recording.dropped_rows,
    recording.lost_events,
)


def find(capture: Capture, ordering: Ordering | None = None) -> list[Finding]:
    """All findings of a capture, the serious ones first; `ordering` is its own, where it is at hand."""
    checked = check_ordering(capture) if ordering is None else ordering
    found = find_in(CopyAnalysis.of(capture))
    pa.default_memory_pool().release_unused()  # of 10 M events Arrow would keep 0.9 GB that nothing else can have
    return [*recording.ordering_faults(checked), *found]


def find_in(view: CopyAnalysis) -> list[Finding]:
    """All findings of a view, the serious ones first; rules keep their order within a severity.

    Where arms or devices get the same advice from a rule, it is one finding with the evidence of each.
    """
    merged: dict[tuple[str, Severity, str], list[Finding]] = {}
    for rule in RULES:
        for found in rule(view):
            merged.setdefault((found.rule, found.severity, found.advice), []).append(found)
    findings = [
        Finding(
            rule,
            severity,
            " ".join(one.evidence for one in alike),
            advice,
            tuple(moment for one in alike for moment in one.moments),
        )
        for (rule, severity, advice), alike in merged.items()
    ]
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
