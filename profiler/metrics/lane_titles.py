"""What a lane of a timeline is called, in pages and exports alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from profiler.metrics.timeline import Lane

CATEGORY_TITLES: Final = {
    "h2d": "copy H2D",
    "d2h": "copy D2H",
    "d2d": "copy D2D",
    "compute": "compute",
    "wait": "waits",
    "cpu_compute": "CPU compute",
    "api": "host calls",
}
_SHORT: Final = {"h2d": "H2D", "d2h": "D2H", "d2d": "D2D", "cpu_compute": "CPU", "api": "host"}


def lane_title(lane: Lane, lanes: Sequence[Lane]) -> str:
    """`GPU 1 · copy H2D · stream 14 · pid 7`: with device and process only where the lanes have several of them."""
    parts = [CATEGORY_TITLES[lane.category]]
    if lane.stream is not None and lane.stream != lane.category:
        is_named = lane.category == "api" or lane.stream.startswith("thread ")
        parts.append(lane.stream if is_named else f"stream {lane.stream}")
    if _has_several_devices(lanes) and lane.device is not None:
        parts.insert(0, f"GPU {lane.device}")
    if len({other.process for other in lanes}) > 1 and lane.process is not None:
        parts.append(f"pid {lane.process}")
    return " · ".join(parts)


def short_lane_title(lane: Lane, lanes: Sequence[Lane]) -> str:
    """As `lane_title`, for where there is no room: `1 H2D 7` is GPU 1's copies to it on stream 7."""
    device = str(lane.device) if _has_several_devices(lanes) and lane.device is not None else ""
    words = (device, _SHORT.get(lane.category, CATEGORY_TITLES[lane.category]), lane.stream or "")
    return " ".join(word for word in words if word)


def _has_several_devices(lanes: Sequence[Lane]) -> bool:
    return len({other.device for other in lanes if other.device is not None}) > 1
