"""The bus, measured by itself: by size, direction and memory, both directions at once, and devices together."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

import torch

from executor.devices.base import CopyRange, Device
from executor.units import format_bytes
from profiler.predicting.probe import Measure
from profiler.probing.timed import cost, rate, stream_ns

_SIZES: Final = (4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
_QUEUED: Final = 32
_QUEUED_SIZES: Final = (4 << 10, 256 << 10, 1 << 20)
_PINNED: Final = 256 << 20


def link_measures(devices: Sequence[Device]) -> Iterator[Measure]:
    """Rates of copies, what each costs besides, and of pinning where that means something."""
    device = devices[0]
    if device.kind == "cuda":
        yield pinning(device)
    there = device.allocate(_SIZES[-1], "the probe's copies")
    for memory, here in _memories(device):
        for size in _SIZES:
            yield _one_way(device, "h2d", memory, here[:size], there[:size])
            yield _one_way(device, "d2h", memory, here[:size], there[:size])
        if memory != "pageable":
            yield from _queued(device, memory, here, there)
            yield from _both_ways(device, memory, here, there)
    device.release(there)
    if len(devices) > 1:
        yield from _together(devices)


def pinning(device: Device) -> Measure:
    """What it costs to pin memory that was touched."""
    slab = torch.ones(_PINNED, dtype=torch.uint8)
    begun = time.perf_counter_ns()
    device.register(slab)
    return cost("pinning", "a GiB", "ms", [time.perf_counter_ns() - begun], _PINNED / 2**30)


def _memories(device: Device) -> Iterator[tuple[str, torch.Tensor]]:
    """Each kind of host memory that makes a difference to this device."""
    n = _SIZES[-1]
    if device.kind != "cuda":
        yield "host", device.host_slab(n, pinned=True)
        return
    yield "pinned", torch.ones(n, dtype=torch.uint8).pin_memory()
    yield "registered", device.host_slab(n, pinned=True)
    yield "pageable", torch.ones(n, dtype=torch.uint8)


def _one_way(device: Device, direction: str, memory: str, here: torch.Tensor, there: torch.Tensor) -> Measure:
    def issue() -> None:
        if direction == "h2d":
            device.copy_in("copy", [_range(here, there)])
        else:
            device.copy_out("copy", there, here)

    n = here.numel()
    return rate(f"copy {direction} {memory}", format_bytes(n), "GB/s", n, stream_ns(device, "copy", issue))


def _queued(device: Device, memory: str, here: torch.Tensor, there: torch.Tensor) -> Iterator[Measure]:
    """Copies one behind the other, as runs of experts are."""
    for size in _QUEUED_SIZES:
        ranges = [_range(here[:size], there[:size])] * _QUEUED

        def issue(ranges: list[CopyRange] = ranges) -> None:
            device.copy_in("copy", ranges)

        times = stream_ns(device, "copy", issue)
        yield cost(f"each of {_QUEUED} copies h2d {memory}", format_bytes(size), "us", times, _QUEUED)


def _both_ways(device: Device, memory: str, here: torch.Tensor, there: torch.Tensor) -> Iterator[Measure]:
    half = here.numel() // 2
    piece = half // 2

    def into() -> None:
        device.copy_in("copy", [_range(here[:half], there[:half])])

    def out_of() -> None:
        device.copy_out("compute", there[half : half + piece], here[half : half + piece])

    def into_piece() -> None:
        device.copy_in("compute", [_range(here[half : half + piece], there[half : half + piece])])

    def all_out() -> None:
        device.copy_out("copy", there[:half], here[:half])

    for direction, issue, beside in (("d2h", out_of, into), ("h2d", into_piece, all_out)):
        times = stream_ns(device, "compute", issue, beside)
        yield rate(f"copy {direction} {memory}, the other way busy", format_bytes(piece), "GB/s", piece, times)


def _together(devices: Sequence[Device]) -> Iterator[Measure]:
    """Each device alone, then with all others copying too."""
    n = _SIZES[-1]
    sources = [device.host_slab(n, pinned=True) for device in devices]
    targets = [device.allocate(n, "the probe's copies") for device in devices]
    for number, device in enumerate(devices):
        others = [one for one in range(len(devices)) if one != number]

        def issue(number: int = number) -> None:
            devices[number].copy_in("copy", [_range(sources[number], targets[number])])

        def beside(others: Sequence[int] = tuple(others)) -> None:
            for other in others:
                devices[other].copy_in("copy", [_range(sources[other], targets[other])] * 3)

        for how, busy in (("alone", None), ("all devices busy", beside)):
            times = stream_ns(device, "copy", issue, busy)
            for other in others:
                devices[other].drain()
            yield rate(f"copy h2d to device {number}, {how}", format_bytes(n), "GB/s", n, times)
    for device, target in zip(devices, targets, strict=True):
        device.release(target)


def _range(here: torch.Tensor, there: torch.Tensor) -> CopyRange:
    return CopyRange(here, 0, there, 0, here.numel())
