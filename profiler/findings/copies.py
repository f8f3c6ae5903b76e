"""Rules about how weights are copied: on which stream, from which memory, how large, and who waits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from profiler.findings import words
from profiler.findings.finding import Finding, severity_of
from profiler.findings.view import Rows, View
from profiler.intervals import Int64
from profiler.joins import NONE, match

_AHEAD_ARMS: Final = ("on", "hot")  # hprof's other arms copy in line at least where they decide to
_CALL_NS: Final = 5_000  # what one copy call costs whatever its size (docs/importing.md)
_EFFICIENCY_FACTOR: Final = 9  # t = call + bytes/rate is 90 % efficient at bytes = 9 * call * rate
_MIN_SMALL_COPIES: Final = 16
_RATE_SAMPLE_BYTES: Final = 4 << 20
_SYNCHRONOUS_CALL: Final = re.compile(r"(cuda|cu|hip)Memcpy(?!.*(Async|Batch))")
_BLOCKING_NS: Final = 20_000


def copies_on_compute_stream(view: View) -> Iterator[Finding]:
    """Copies that wait for the computing before them, and make the computing behind them wait."""
    rows = view.in_line
    exposed = view.sum(rows.group, rows.length - view.hidden_of(rows))
    # Compute that already hides other copies cannot hide these as well.
    free_compute_ns = view.compute_ns - view.hidden_by_group(view.busy_h2d)
    for group in np.unique(rows.group).tolist():
        severity = severity_of(exposed[group], view.window_ns[group])
        if severity is None:
            continue
        mine = rows.where(rows.group == group)
        compute_ns, hideable_ns = int(view.compute_ns[group]), int(min(exposed[group], free_compute_ns[group]))
        by_design = view.manifest.source == "hprof" and _requested(view, group) not in _AHEAD_ARMS
        yield Finding(
            "copies-on-compute-stream",
            "info" if by_design else severity,
            f"{_copied(view, mine)} on {_compute_streams(view, mine)}: "
            f"{words.duration(mine.length.sum())} of copies, {words.duration(mine.length.sum() - exposed[group])} "
            f"({words.share(mine.length.sum() - exposed[group], mine.length.sum())}) hidden behind "
            f"{words.duration(compute_ns)} of compute.",
            _in_line_advice(int(exposed[group]), compute_ns, hideable_ns, by_design=by_design),
        )


def _requested(view: View, group: int) -> str | None:
    """The policy that an arm was asked for: `off` of the arms off, off@2 and off@copy2."""
    name = view.groups[group].arm
    return next((arm.requested for arm in view.manifest.arms if arm.name == name), None) or name


def _in_line_advice(exposed_ns: int, compute_ns: int, hideable_ns: int, *, by_design: bool) -> str:
    if by_design:
        return "This arm copies in line by design; compare it with an arm that copies ahead (on, auto, hot)."
    stream = (
        "Copy the next layer on a stream of its own while this one computes, ordered by events and not by the "
        "host (llama.cpp: -pw 1; PyTorch: a side stream, record_event and wait_event)"
    )
    if hideable_ns >= exposed_ns // 4:
        return f"{stream}: up to {words.duration(hideable_ns)} of the {words.duration(exposed_ns)} can be hidden."
    ratio = exposed_ns / max(compute_ns, 1)
    return (
        f"{stream}; but copying takes {ratio:.0f}x as long as computing, so that hides at most "
        f"{words.duration(hideable_ns)} ({words.share(hideable_ns, exposed_ns)}). Above all move fewer bytes (more "
        "layers resident, a smaller quantisation, only the experts in use) or do more with each copy (larger "
        "ubatches, more requests at a time)."
    )


def pageable_copies(view: View) -> Iterator[Finding]:
    """Copies from memory that the driver must stage: slower, and the host takes part in them."""
    memory = view.codes("source_memory")[view.weights.row]
    pageable = view.weights.where(memory == view.code("source_memory", "pageable"))
    pinned = view.weights.where(memory == view.code("source_memory", "pinned"))
    for group in np.unique(pageable.group).tolist():
        mine, others = pageable.where(pageable.group == group), pinned.where(pinned.group == group)
        severity = severity_of(mine.length.sum(), view.window_ns[group])
        if severity is None:
            continue
        beside = f"; copies from pinned memory reach {_rate(view, others)}" if len(others) else ""
        yield Finding(
            "pageable-copies",
            severity,
            f"{_copied(view, mine)} in {words.duration(mine.length.sum())}, "
            f"{words.share(mine.length.sum(), view.h2d_ns[group])} of the time spent on copies to the device{beside}.",
            "Pin the weights: a copy from pageable memory goes through a staging buffer, holds up the host and "
            "overlaps with nothing reliably (hprof: --load-mode none or register; llama.cpp: --no-mmap; PyTorch: "
            "tensor.pin_memory()).",
        )


def synchronous_copies(view: View) -> Iterator[Finding]:
    """Copies whose host call came back only when they had ended."""
    rows, call = _calls_of(view, view.weights)
    if len(rows) == 0:
        return
    names = np.array([bool(_SYNCHRONOUS_CALL.match(text)) for text in view.labels["name"][1]] + [False])
    waited = view.ints["t_end"][call] >= view.ints["t_end"][rows.row]
    blocking = names[view.codes("name")[call]] | (waited & (rows.length >= _BLOCKING_NS))
    rows, call = rows.where(blocking), call[blocking]
    for group in np.unique(rows.group).tolist():
        mine = rows.group == group
        lost_ns = int(rows.length[mine].sum())
        severity = severity_of(lost_ns, view.window_ns[group])
        if severity is None:
            continue
        used = sorted({view.labels["name"][1][code] for code in np.unique(view.codes("name")[call[mine]]) if code >= 0})
        yield Finding(
            "synchronous-copies",
            severity,
            f"{_copied(view, rows.where(mine))} held up the host until they had ended ({', '.join(used[:3])}), "
            f"{words.duration(lost_ns)} in all.",
            "Copy with cudaMemcpyAsync from pinned memory (PyTorch: tensor.to(device, non_blocking=True) from a "
            "pinned tensor), so that the host can queue the next layer's copy and the kernels behind it.",
        )


def small_copies(view: View) -> Iterator[Finding]:
    """Copies so small that the fixed cost of each one outweighs the transfer."""
    n_bytes = view.ints["bytes"][view.weights.row]
    for group in np.unique(view.weights.group).tolist():
        mine = (view.weights.group == group) & (n_bytes > 0)
        peak = view.manifest.link_h2d_gb_s or _peak_bytes_per_ns(n_bytes[mine], view.weights.length[mine])
        if peak is None:
            continue
        efficient = _EFFICIENCY_FACTOR * _CALL_NS * peak
        small = mine & (n_bytes < efficient)
        lost_ns = float((view.weights.length[small] - n_bytes[small] / peak).sum())
        severity = severity_of(lost_ns, view.window_ns[group])
        if severity is None or np.count_nonzero(small) < _MIN_SMALL_COPIES:
            continue
        yield Finding(
            "small-copies",
            severity,
            f"{_copied(view, view.weights.where(small))} are smaller than the {words.size(efficient)} from which this "
            f"link is 90 % efficient ({peak:.1f} GB/s, {words.duration(_CALL_NS)} a call): {words.duration(lost_ns)} "
            "more than the bytes alone would take.",
            "Merge neighbours into one copy: keep a layer's tensors, or an expert's gate, up and down, side by side "
            "in one buffer, copy runs of experts together, or batch the calls (cudaMemcpyBatchAsync).",
        )


def _peak_bytes_per_ns(n_bytes: Int64, length: Int64) -> float | None:
    large = (n_bytes >= _RATE_SAMPLE_BYTES) & (length > 0)
    return float((n_bytes[large] / length[large]).max()) if large.any() else None


def _calls_of(view: View, rows: Rows) -> tuple[Rows, Int64]:
    """The rows whose host call is known, and the row of that call."""
    calls = np.flatnonzero(view.is_any("kind", ["api"]))
    if len(calls) == 0:
        return rows.where(calls), calls
    scope, number = view.scope, view.ints["correlation_id"]
    at = match(scope[rows.row], number[rows.row], scope[calls], number[calls])
    return rows.where(at != NONE), calls[at[at != NONE]]


def _copied(view: View, rows: Rows) -> str:
    """`GPU 0 of process 111: 25.5 GB pinned H2D in 223 copies at 27.7 GB/s`."""
    n_bytes = view.ints["bytes"][rows.row]
    group = view.groups[int(rows.group[0])]
    known = bool((n_bytes >= 0).all())
    what = f"{words.size(n_bytes.sum())} {_memory(view, rows, n_bytes)}H2D" if known else "H2D"
    at = f" at {_rate(view, rows)}" if known else ""
    return f"{group.label}: {what} in {words.count(len(rows), 'copy')}{at}"


def _memory(view: View, rows: Rows, n_bytes: Int64) -> str:
    codes = view.codes("source_memory")[rows.row]
    for memory in ("pinned", "pageable", "managed"):
        if n_bytes[codes == view.code("source_memory", memory)].sum() >= 0.99 * n_bytes.sum() > 0:
            return f"{memory} "
    return ""


def _rate(view: View, rows: Rows) -> str:
    return words.rate(view.ints["bytes"][rows.row].sum(), rows.length.sum())


def _compute_streams(view: View, rows: Rows) -> str:
    names = view.labels["stream"][1]
    used = [names[code] for code in np.unique(view.codes("stream")[rows.row]).tolist()]
    if len(used) == 1:
        return f"stream {used[0]}, which also runs the kernels"
    return f"streams {', '.join(used[:8])}, which also run the kernels"
