"""What bounds an arm's prompt: copies, compute or neither alone."""

from __future__ import annotations

from typing import Final

from dashboard.text import listed
from profiler.metrics import Scope
from profiler.report.data import ArmFigures
from profiler.report.units import format_ns

_NEAR: Final = 0.1  # so much shorter than the whole, and a part may still be said to bound it
_PARTS: Final = {
    "busy_copy_ns": "copies",
    "busy_compute_ns": "compute",
    "host_compute_ns": "computing on the host",
}


def bound(arm: ArmFigures) -> str | None:
    """Copies, compute and the host's part of the prompt (of the pass, where no prompt copies) against its time.

    A part bounds only what takes hardly longer than it. Several devices work beside each other, so the sum of theirs
    bounds nothing. null: the source does not say both copies and compute.
    """
    scope: Scope = "prefill" if arm.median("busy_copy_ns", "prefill") else "pass"
    found = {words: arm.median(name, scope) for name, words in _PARTS.items()}
    parts = {words: value for words, value in found.items() if value}
    if found["copies"] is None or found["compute"] is None or not parts:
        return None
    what = "prompt" if scope == "prefill" else "pass"
    took_ns = (arm.median("ttft_ns") if scope == "prefill" else None) or arm.median("wall_ns", scope)
    told = listed([f"{format_ns(value)} of {words}" for words, value in parts.items()])
    is_summed = len(arm.by_device) > 1 or (took_ns is not None and max(parts.values()) > took_ns * (1 + _NEAR))
    if took_ns is None or is_summed:
        return f"Its {what} holds {told}{', summed over devices' if is_summed else ''}."
    bounding = [words for words, value in parts.items() if value >= took_ns * (1 - _NEAR)]
    if not bounding:
        none = {1: "which does not bound it", 2: "neither of which bounds it alone"}
        return (
            f"Its {what} takes {format_ns(took_ns)}: {told}, {none.get(len(parts), 'none of which bounds it alone')}."
        )
    verb = "bounds" if bounding in (["compute"], ["computing on the host"]) else "bound"
    return f"Its {listed(bounding)} {verb} the {what}, which takes {format_ns(took_ns)}: {told}."
