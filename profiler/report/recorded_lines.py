"""What a recording beside the timed runs saw of each arm, in a line an arm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from executor.units import format_bytes, format_ns, format_share
from profiler.manifest import Manifest
from profiler.plain_text import printable


def recorded_lines(manifest: Manifest) -> Iterator[str]:
    """Nothing for captures without such a recording; what it could not say is left out."""
    recorded = manifest.extra.get("recorded")
    arms = recorded.get("arms") if isinstance(recorded, dict) else None
    if not isinstance(arms, dict) or not isinstance(recorded, dict):
        return
    yield printable(f"{recorded.get('how', '')} The recording: {recorded.get('capture', 'unknown')}")
    for name, figures in arms.items():
        if isinstance(figures, dict) and (told := list(_told(figures))):
            yield printable(f"  {name}: {', '.join(told)}.")


def _told(figures: Mapping[str, Any]) -> Iterator[str]:
    n_bytes, busy_ns, hidden_ns, compute_ns, idle_ns, host_ns = (
        value if isinstance(value := figures.get(name), int | float) else None
        for name in ("bytes_h2d", "busy_copy_ns", "hidden_copy_ns", "busy_compute_ns", "idle_ns", "host_compute_ns")
    )
    if n_bytes is not None:
        yield f"copied {format_bytes(n_bytes)} to the device"
    if busy_ns is not None:
        shown = (
            f", {format_share(hidden_ns / busy_ns)} of it hidden behind compute"
            if busy_ns and hidden_ns is not None
            else ""
        )
        yield f"busy copy {format_ns(busy_ns)}{shown}"
    if compute_ns is not None:
        yield f"busy compute {format_ns(compute_ns)}"
    if idle_ns is not None:
        yield f"idle {format_ns(idle_ns)}"
    if host_ns:
        yield f"host compute {format_ns(host_ns)}"
