"""Rules about how weights are copied: on which stream, from which memory, how large, and who waits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from profiler.arithmetic.intervals import Int64
from profiler.arithmetic.joins import NONE, match
from profiler.findings import words
from profiler.findings.finding import Finding
from profiler.findings.groups import Judged
from profiler.findings.view import Rows, View

_AHEAD_ARMS: Final = ("on", "hot")
_CHOOSING_ARMS: Final = ("auto", "gated")
_IN_LINE: Final = "In line by design: compare with an arm that copies ahead (on, auto, hot)."
_CHOSEN: Final = (
    "In line by design, in ubatches of which the policy decides that copying ahead does not pay; `on` beside it shows "
    "whether it is right."
)
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


def copies_on_compute_stream(view: View) -> Iterator[Finding]:
    """Copies that wait for the computing before them, and make the computing behind them wait."""
    rows = view.in_line
    copied = view.sum(rows.context, rows.length)
    exposed = view.sum(rows.context, rows.length - view.hidden_of(rows))
    # Compute that already hides other copies cannot hide these as well.
    hideable = np.minimum(exposed, view.compute_ns - view.hidden(view.busy_h2d))
    for told in view.judged(exposed):
        copied_ns, exposed_ns, hideable_ns, compute_ns = (
            view.typical(told.group, values) for values in (copied, exposed, hideable, view.compute_ns)
        )
        hidden_ns = view.typical(told.group, copied - exposed)
        mine = rows.where(rows.group == told.group)
        design = _design(_requested(view, told.group)) if view.manifest.source == "hprof" else None
        yield Finding(
            "copies-on-compute-stream",
            "info" if design else told.severity,
            f"{_copied(view, told, mine)} on {_compute_streams(view, mine)}: {words.duration(copied_ns)} of copies, "
            f"{words.duration(hidden_ns)} ({words.share(hidden_ns, copied_ns)}) hidden behind "
            f"{words.duration(compute_ns)} of compute.",
            design or _in_line_advice(exposed_ns, compute_ns, hideable_ns),
        )


def _design(requested: str | None) -> str | None:
    """Why an arm of hprof copies in line on purpose; null for one that never should."""
    arm, _, cache = (requested or "").partition("+")
    if arm in _AHEAD_ARMS:
        return _MISSED if cache else None
    return _CHOSEN if arm in _CHOOSING_ARMS else _IN_LINE


def _requested(view: View, group: int) -> str | None:
    """The policy that an arm was asked for: `off` of the arms off, off@2 and off@copy2."""
    name = view.groups.members[group].arm
    return next((arm.requested for arm in view.manifest.arms if arm.name == name), None) or name


def _in_line_advice(exposed_ns: float, compute_ns: float, hideable_ns: float) -> str:
    stream = (
        "Copy the next layer on a stream of its own while this one computes, ordered by events and not by the "
        "host (llama.cpp: -pw 1; PyTorch: a side stream, record_event and wait_event)"
    )
    if hideable_ns >= exposed_ns / 4:
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
    lost = view.sum(pageable.context, pageable.length)
    for told in view.judged(lost):
        mine, others = (rows.where(rows.group == told.group) for rows in (pageable, pinned))
        lost_ns, all_ns = (view.typical(told.group, values) for values in (lost, view.h2d_ns))
        beside = f"; copies from pinned memory reach {_rate(view, others)}" if len(others) else ""
        yield Finding(
            "pageable-copies",
            told.severity,
            f"{_copied(view, told, mine)} in {words.duration(lost_ns)}, {words.share(lost_ns, all_ns)} of the time "
            f"spent on copies to the device{beside}.",
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
    lost = view.sum(rows.context, rows.length)
    for told in view.judged(lost):
        mine = rows.group == told.group
        used = sorted({view.labels["name"][1][code] for code in np.unique(view.codes("name")[call[mine]]) if code >= 0})
        yield Finding(
            "synchronous-copies",
            told.severity,
            f"{_copied(view, told, rows.where(mine))} held up the host until they had ended ({', '.join(used[:3])}), "
            f"{words.duration(view.typical(told.group, lost))} in all.",
            "Copy with cudaMemcpyAsync from pinned memory (PyTorch: tensor.to(device, non_blocking=True) from a "
            "pinned tensor), so that the host can queue the next layer's copy and the kernels behind it.",
        )


def small_copies(view: View) -> Iterator[Finding]:
    """Copies so small that the fixed cost of each one outweighs the transfer."""
    rows = view.weights.where(view.ints["bytes"][view.weights.row] > 0)
    n_bytes = view.ints["bytes"][rows.row]
    peak = _peak_bytes_per_ns(view, rows, n_bytes)
    efficient = _EFFICIENCY_FACTOR * _CALL_NS * peak
    small = n_bytes < efficient[rows.group]  # nowhere where the peak is not known
    rows, n_bytes = rows.where(small), n_bytes[small]
    lost = view.sum(rows.context, rows.length - n_bytes / peak[rows.group])
    for told in view.judged(lost):
        mine, link = rows.where(rows.group == told.group), peak[told.group]
        if view.typical(told.group, view.count(mine)) < _MIN_SMALL_COPIES:
            continue
        yield Finding(
            "small-copies",
            told.severity,
            f"{_copied(view, told, mine)} are smaller than the {words.size(efficient[told.group])} from which this "
            f"link is 90 % efficient ({link:.1f} GB/s, {words.duration(_CALL_NS)} a call): "
            f"{words.duration(view.typical(told.group, lost))} more than the bytes alone would take.",
            "Merge neighbours into one copy: keep a layer's tensors, or an expert's gate, up and down, side by side "
            f"in one buffer, copy runs of experts together{_BATCHED if view.is_gpu else ''}.",
        )


def _peak_bytes_per_ns(view: View, rows: Rows, n_bytes: Int64) -> npt.NDArray[np.float64]:
    """What the link of each group carries: as measured, else its best large copy; NaN where it has none."""
    if view.manifest.link_h2d_gb_s:
        return np.full(len(view.groups), view.manifest.link_h2d_gb_s)
    large = (n_bytes >= _RATE_SAMPLE_BYTES) & (rows.length > 0)
    peak = np.full(len(view.groups), np.nan)
    np.fmax.at(peak, rows.group[large], n_bytes[large] / rows.length[large])
    return peak


def _calls_of(view: View, rows: Rows) -> tuple[Rows, Int64]:
    """The rows whose host call is known, and the row of that call."""
    calls = np.flatnonzero(view.is_any("kind", ["api"]))
    if len(calls) == 0:
        return rows.where(calls), calls
    scope, number = view.scope, view.ints["correlation_id"]
    at = match(scope[rows.row], number[rows.row], scope[calls], number[calls])
    return rows.where(at != NONE), calls[at[at != NONE]]


def _copied(view: View, told: Judged, rows: Rows) -> str:
    """`GPU 0 of process 111, over the trace: 25.5 GB pinned H2D in 223 copies at 27.7 GB/s`."""
    n_bytes = view.ints["bytes"][rows.row]
    known = bool((n_bytes >= 0).all())
    moved = view.typical(told.group, view.sum(rows.context, n_bytes))
    what = f"{words.size(moved)} {_memory(view, rows, n_bytes)}H2D" if known else "H2D"
    at = f" at {_rate(view, rows)}" if known else ""
    number = round(view.typical(told.group, view.count(rows)))
    return f"{told.label}: {what} in {words.count(number, 'copy')}{at}"


def _memory(view: View, rows: Rows, n_bytes: Int64) -> str:
    codes = view.codes("source_memory")[rows.row]
    for memory in ("pinned", "pageable", "managed"):
        if n_bytes[codes == view.code("source_memory", memory)].sum() >= 0.99 * n_bytes.sum() > 0:
            return f"{memory} "
    return ""


def _rate(view: View, rows: Rows) -> str:
    return words.rate(view.ints["bytes"][rows.row].sum(dtype=np.float64), rows.length.sum())


def _compute_streams(view: View, rows: Rows) -> str:
    names = view.labels["stream"][1]
    used = [names[code] for code in np.unique(view.codes("stream")[rows.row]).tolist()]
    if len(used) == 1:
        return f"stream {used[0]}, which also runs the kernels"
    return f"streams {', '.join(used[:8])}, which also run the kernels"
