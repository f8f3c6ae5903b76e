"""What programs allocated of device memory, as `hprof record` saw it."""

from __future__ import annotations

from typing import Any

from executor.units import format_bytes
from profiler.manifest import Manifest

_MAX_LINES = 16


def allocation_notes(manifest: Manifest) -> list[str]:
    """A line for each process and device; empty for a capture whose source does not say."""
    told = manifest.extra.get("device_memory")
    rows = [row for row in told if _is_sound(row)] if isinstance(told, list) else []
    return [
        f"Process {row['process']}, device {row['device']}: at most {format_bytes(row['peak_bytes'])} of its memory "
        "allocated while recorded."
        for row in rows[:_MAX_LINES]
    ]


def _is_sound(row: Any) -> bool:
    return isinstance(row, dict) and all(type(row.get(name)) is int for name in ("process", "device", "peak_bytes"))
