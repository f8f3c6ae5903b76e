"""Traces without passes: only figures that do not grow with a trace's length can be held against each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profiler.compare.data import DeviceChange, DeviceUnit
from profiler.compare.sides import SideData
from profiler.metrics import DeviceFigures, device_figures


def device_changes(a: SideData, b: SideData) -> list[DeviceChange]:
    """Rates, shares and sizes of each device, in the order of the traces; devices are paired by their place."""
    left, right = (
        device_figures(side.tables.recording, by_pass=side.capture.manifest.source == "hprof") for side in (a, b)
    )
    found: list[DeviceChange] = []
    for place in range(max(len(left), len(right))):
        of_a, of_b = (dict(_figures(side, place)) for side in (left, right))
        label = _label(left, right, place)
        found += [
            DeviceChange(label, name, unit, of_a.get((name, unit)), of_b.get((name, unit)))
            for name, unit in dict.fromkeys([*of_a, *of_b])
        ]
    return found


def _figures(devices: Sequence[DeviceFigures], place: int) -> Iterator[tuple[tuple[str, DeviceUnit], float | None]]:
    if place >= len(devices):
        return
    device = devices[place]
    for direction, copies in device.copies.items():
        yield (f"{direction} rate", "GB/s"), copies.gb_s
        yield (f"{direction} hidden", "share"), copies.hidden_ns / copies.busy_ns if copies.busy_ns else None
        yield (f"{direction} bytes a copy", "bytes"), None if copies.bytes is None else copies.bytes / copies.count
        if direction == "h2d" and copies.bytes and copies.pageable_bytes is not None:
            yield (f"{direction} from pageable memory", "share"), copies.pageable_bytes / copies.bytes
    if (h2d := device.copies.get("h2d")) is not None and device.compute_busy_ns:
        yield ("copying against computing", "share"), h2d.busy_ns / device.compute_busy_ns


def _label(left: Sequence[DeviceFigures], right: Sequence[DeviceFigures], place: int) -> str:
    numbers = [str(side[place].device) if place < len(side) else "none" for side in (left, right)]
    return f"device {numbers[0]}" if numbers[0] == numbers[1] else f"device {numbers[0]} → {numbers[1]}"
