"""Rules about copies: how weights and activations are copied, and what of it nothing hides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from executor.arrays import Floats, Int64
from executor.policies.traits import ArmTraits
from executor.units import format_bytes, format_count, format_gb_s, format_ns, format_share, listed
from profiler.arithmetic.joins import match
from profiler.findings.analysis import CopyAnalysis, WorkRows
from profiler.findings.finding import Finding, Judged
from profiler.schema import ABSENT, ROLES

_MISSED: Final = (
    "In line by design: what the expert cache misses is uploaded once the router has chosen, so that nothing could "
    "copy it ahead. A larger bank (--moe-cache-mib) misses less."
)
_CALL_NS: Final = 5_000  # what one copy call costs whatever its size (docs/importing.md)
_EFFICIENCY_FACTOR: Final = 9  # t = call + bytes/rate is 90 % efficient at bytes = 9 * call * rate
_MIN_SMALL_COPIES: Final = 16
_RATE_SAMPLE_BYTES: Final = 4 << 20
_SYNCHRONOUS_CALL: Final = re.compile(r"(cuda|cu|hip)Memcpy(?!.*(Async|Batch))")
_BLOCKING_NS: Final = 20_000
_BATCHED: Final = ", or batch the calls (cudaMemcpyBatchAsync)"


def copies_on_compute_stream(view: CopyAnalysis) -> Iterator[Finding]:
    """Copies that wait for the computing before them, and make the computing behind them wait."""
    rows = view.in_line
    busy = rows.busy
    copied, exposed = view.length(busy), view.exposed(busy)
    # Compute that already hides other copies cannot hide these as well.
    hideable = np.minimum(exposed, view.compute_ns - view.hidden(view.busy_h2d))
    for told in view.judged(exposed):
        copied_ns, exposed_ns, hideable_ns, compute_ns = (
            view.typical(told.group, values) for values in (copied, exposed, hideable, view.compute_ns)
        )
        hidden_ns = view.typical(told.group, copied - exposed)
        mine = rows.where(rows.group == told.group)
        design = _design(_traits(view, told.group)) if view.manifest.source == "hprof" else None
        yield Finding(
            "copies-on-compute-stream",
            "info" if design else told.severity,
            f"{_copied(view, told, mine)} on {_compute_streams(view, mine)}: {format_ns(copied_ns)} of copies, "
            f"{format_ns(hidden_ns)} ({_share(hidden_ns, copied_ns)}) hidden behind "
            f"{format_ns(compute_ns)} of compute.",
            design or _in_line_advice(exposed_ns, hideable_ns),
            view.costliest(rows, told.group),
        )


def _design(traits: ArmTraits | None) -> str | None:
    """Why an arm copies in line on purpose; None for one that never should, or of which nothing is known."""
    if traits is None:
        return None
    if traits.copies == "ahead":
        return _MISSED if traits.has_cache else None
    if traits.copies == "chosen":
        others = " or ".join(f"`{arm}`" for arm in traits.held_against)
        judge = f"; {others} beside it shows whether it is right" if others else ""
        return f"In line by design, where the policy chooses to copy in line{judge}."
    return f"In line by design: compare with {listed(traits.held_against) or 'an arm that copies ahead'}."


def _traits(view: CopyAnalysis, group: int) -> ArmTraits | None:
    name = view.groups.members[group].arm
    return next((arm.traits for arm in view.manifest.arms if arm.name == name), None)


def _in_line_advice(exposed_ns: float, hideable_ns: float) -> str:
    stream = (
        "Copy the next layer on a stream of its own while this one computes, ordered by events and not by the "
        "host (llama.cpp: -pw 1; PyTorch: a side stream, record_event and wait_event)"
    )
    if hideable_ns >= exposed_ns / 4:
        return f"{stream}: up to {format_ns(hideable_ns)} of the {format_ns(exposed_ns)} can be hidden."
    return (
        f"{stream}; but only {format_ns(hideable_ns)} of compute have no copy beside them, so that hides at most "
        f"{_share(hideable_ns, exposed_ns)} of the {format_ns(exposed_ns)}. Above all move fewer bytes (more "
        "layers resident, a smaller quantisation, only the experts in use) or do more with each copy (larger "
        "ubatches, more requests at a time)."
    )


def pageable_copies(view: CopyAnalysis) -> Iterator[Finding]:
    """Copies from memory that the driver must stage: slower, and the host takes part in them."""
    memory = view.codes("source_memory")[view.weights.row]
    pageable = view.weights.where(memory == view.code("source_memory", "pageable"))
    pinned = view.weights.where(memory == view.code("source_memory", "pinned"))
    lost = view.length(pageable.busy)
    for told in view.judged(lost):
        mine, others = (rows.where(rows.group == told.group) for rows in (pageable, pinned))
        lost_ns, all_ns = (view.typical(told.group, values) for values in (lost, view.h2d_ns))
        beside = f"; copies from pinned memory reach {_rate(view, others)}" if len(others) else ""
        yield Finding(
            "pageable-copies",
            told.severity,
            f"{_copied(view, told, mine)} in {format_ns(lost_ns)}, {_share(lost_ns, all_ns)} of the time "
            f"spent on copies to the device{beside}.",
            "Pin the weights: a copy from pageable memory goes through a staging buffer, holds up the host and "
            "overlaps with nothing reliably (hprof: --load-mode none or register; llama.cpp: --no-mmap; PyTorch: "
            "tensor.pin_memory()).",
            view.costliest(pageable, told.group),
        )


def synchronous_copies(view: CopyAnalysis) -> Iterator[Finding]:
    """Copies whose host call came back only when they had ended."""
    rows, call = _calls_of(view, view.weights)
    if len(rows) == 0:
        return
    names = np.array([bool(_SYNCHRONOUS_CALL.match(text)) for text in view.labels["name"][1]] + [False])
    waited = view.ints["t_end"][call] >= view.ints["t_end"][rows.row]
    blocking = names[view.codes("name")[call]] | (waited & (rows.length >= _BLOCKING_NS))
    rows, call = rows.where(blocking), call[blocking]
    lost = view.length(rows.busy)
    for told in view.judged(lost):
        mine = rows.group == told.group
        used = sorted({view.labels["name"][1][code] for code in np.unique(view.codes("name")[call[mine]]) if code >= 0})
        yield Finding(
            "synchronous-copies",
            told.severity,
            f"{_copied(view, told, rows.where(mine))} held up the host until they had ended ({', '.join(used[:3])}), "
            f"{format_ns(view.typical(told.group, lost))} in all.",
            "Copy with cudaMemcpyAsync from pinned memory (PyTorch: tensor.to(device, non_blocking=True) from a "
            "pinned tensor), so that the host can queue the next layer's copy and the kernels behind it.",
            view.costliest(rows, told.group),
        )


def small_copies(view: CopyAnalysis) -> Iterator[Finding]:
    """Copies so small that the fixed cost of each one outweighs the transfer."""
    rows = view.weights.where(view.ints["bytes"][view.weights.row] > 0)
    n_bytes = view.ints["bytes"][rows.row]
    peak = _peak_bytes_per_ns(view, rows, n_bytes)
    efficient = _EFFICIENCY_FACTOR * _CALL_NS * peak
    small = n_bytes < efficient[rows.group]  # nowhere where the peak is not known
    rows, n_bytes = rows.where(small), n_bytes[small]
    alone = view.sum(rows.context, n_bytes / peak[rows.group])
    lost = np.maximum(view.length(rows.busy) - alone, 0)
    for told in view.judged(lost):
        mine, link = rows.where(rows.group == told.group), peak[told.group]
        if view.typical(told.group, view.count(mine)) < _MIN_SMALL_COPIES:
            continue
        yield Finding(
            "small-copies",
            told.severity,
            f"{_copied(view, told, mine)} are smaller than the {format_bytes(efficient[told.group])} from which this "
            f"link is 90 % efficient ({format_gb_s(link)}, {format_ns(_CALL_NS)} a call): "
            f"{format_ns(view.typical(told.group, lost))} more than the bytes alone would take.",
            "Merge neighbours into one copy: keep a layer's tensors, or an expert's gate, up and down, side by side "
            f"in one buffer, copy runs of experts together{_BATCHED if view.is_gpu else ''}.",
            view.costliest(mine, told.group, mine.length - view.ints["bytes"][mine.row] / link),
        )


def exposed_copies_to_host(view: CopyAnalysis) -> Iterator[Finding]:
    """Copies back to the host (offloaded activations, a KV cache that moves out) that no compute hides.

    What hprof's own arms copy back, the next step on the host waits for: that is their design.
    """
    if view.manifest.source == "hprof":
        return
    rows = view.rows(view.role == ROLES.index("d2h"))
    busy = rows.busy
    copied, exposed = view.length(busy), view.exposed(busy)
    n_bytes = view.ints["bytes"][rows.row]
    for told in view.judged(exposed):
        mine = rows.where(rows.group == told.group)
        copied_ns, exposed_ns = (view.typical(told.group, values) for values in (copied, exposed))
        known = bool((n_bytes[rows.group == told.group] >= 0).all())
        moved = f"{format_bytes(view.typical(told.group, view.sum(rows.context, n_bytes)))} D2H" if known else "D2H"
        at = f" at {_rate(view, mine)}" if known else ""
        number = round(view.typical(told.group, view.count(mine)))
        yield Finding(
            "exposed-copies-to-host",
            told.severity,
            f"{told.label}: {moved} in {format_count(number, 'copy')}{at}: {format_ns(exposed_ns)} of their "
            f"{format_ns(copied_ns)} were not hidden by compute.",
            "Copy back on a stream of its own while the next layer computes, into pinned memory and without waiting "
            "for it (PyTorch: non_blocking=True into a pinned tensor, record_stream on the source); copies to the host "
            "and to the device can run at the same time.",
            view.costliest(rows, told.group),
        )


def unified_memory(view: CopyAnalysis) -> Iterator[Finding]:
    """Pages that migrate when a kernel touches them: no prefetch, whatever the overlap looks like."""
    rows = view.rows(view.role == ROLES.index("uvm_h2d"))
    lost = view.length(rows.busy)
    moved = view.sum(rows.context, view.ints["bytes"][rows.row].clip(0))
    for told in view.judged(lost):
        n_bytes, ns, number = (view.typical(told.group, values) for values in (moved, lost, view.count(rows)))
        yield Finding(
            "unified-memory",
            told.severity,
            f"{told.label}: {format_bytes(n_bytes)} migrated to the device in {format_count(round(number), 'piece')} "
            f"at {_speed(n_bytes, ns)}. Kernels that touch such a page stand still until it has come.",
            "Prefetch the range (cudaMemPrefetchAsync) or hold the weights in pinned memory and copy them.",
            view.costliest(rows, told.group),
        )


def _peak_bytes_per_ns(view: CopyAnalysis, rows: WorkRows, n_bytes: Int64) -> Floats:
    """What the link of each group carries: as measured, else its best large copy; NaN where it has none."""
    if view.manifest.link_h2d_gb_s:
        return np.full(len(view.groups), view.manifest.link_h2d_gb_s)
    large = (n_bytes >= _RATE_SAMPLE_BYTES) & (rows.length > 0)
    peak = np.full(len(view.groups), np.nan)
    np.fmax.at(peak, rows.group[large], n_bytes[large] / rows.length[large])
    return peak


def _calls_of(view: CopyAnalysis, rows: WorkRows) -> tuple[WorkRows, Int64]:
    """The rows whose host call is known, and the row of that call."""
    calls = np.flatnonzero(view.codes("kind") == view.code("kind", "api"))
    if len(calls) == 0:
        return rows.where(calls), calls
    scope, number = view.scope, view.ints["correlation_id"]
    found = match(scope[rows.row], number[rows.row], scope[calls], number[calls])
    return rows.where(found.row), calls[found.other]


def _copied(view: CopyAnalysis, told: Judged, rows: WorkRows) -> str:
    """`GPU 0 of process 111, over the trace: 23.7 GiB pinned H2D in 223 copies at 27.7 GB/s`.

    Where all of the copies name tensors: `23.7 GiB pinned H2D of weights in ...`.
    """
    n_bytes = view.ints["bytes"][rows.row]
    known = bool((n_bytes >= 0).all())
    moved = view.typical(told.group, view.sum(rows.context, n_bytes))
    what = f"{format_bytes(moved)} {_memory(view, rows, n_bytes)}H2D" if known else "H2D"
    if (view.codes("tensor")[rows.row] != ABSENT).all():  # other copies, such as activations, are not among them
        what += " of weights"
    at = f" at {_rate(view, rows)}" if known else ""
    number = round(view.typical(told.group, view.count(rows)))
    return f"{told.label}: {what} in {format_count(number, 'copy')}{at}"


def _memory(view: CopyAnalysis, rows: WorkRows, n_bytes: Int64) -> str:
    codes = view.codes("source_memory")[rows.row]
    for memory in ("pinned", "pageable", "managed"):
        if n_bytes[codes == view.code("source_memory", memory)].sum() >= 0.99 * n_bytes.sum() > 0:
            return f"{memory} "
    return ""


def _rate(view: CopyAnalysis, rows: WorkRows) -> str:
    return _speed(float(view.ints["bytes"][rows.row].sum(dtype=np.float64)), rows.busy.total)


def _speed(n_bytes: float, busy_ns: float) -> str:
    return format_gb_s(n_bytes / busy_ns) if busy_ns > 0 else "an unknown rate"


def _share(part: float, whole: float) -> str:
    return format_share(part / whole) if whole > 0 else "0 %"


def _compute_streams(view: CopyAnalysis, rows: WorkRows) -> str:
    names = view.labels["stream"][1]
    used = [names[code] for code in np.unique(view.codes("stream")[rows.row]).tolist()]
    if len(used) == 1:
        return f"stream {used[0]}, which also runs the kernels"
    return f"streams {', '.join(used[:8])}, which also run the kernels"
