"""What a trace makes of its marks."""

from __future__ import annotations

from typing import cast

import pytest

from executor.devices.base import Device
from executor.devices.sim import SimDevice
from executor.passes import EventKind, Ubatch
from executor.tracing.pass_trace import PassTrace


class Marks:
    """A device whose events are their times."""

    index = 0

    def label(self, *_: object) -> None:
        """Nothing to name."""

    def time_ns(self, event: int) -> int:
        return event


def waits(*spans: tuple[EventKind, str, int, int, dict[str, int]]) -> list[tuple[int, int]]:
    """Where the compute stream waited for a copy, of spans (kind, stream, start, end, fields)."""
    trace, device, ubatch = PassTrace(enabled=True), cast(SimDevice, Marks()), Ubatch(0, "prefill", 8, 0, 1)
    for kind, stream, start, end, fields in spans:
        trace.add(cast(Device, device), stream, kind, kind, ubatch, start, end, **fields)  # type: ignore[arg-type]
    return [(row.t_start, row.t_end) for row in trace.records() if row.kind == "wait"]


def copy(start: int, end: int, stream: str = "copy") -> tuple[EventKind, str, int, int, dict[str, int]]:
    return "h2d", stream, start, end, {"correlation_id": 1}


BEFORE: tuple[EventKind, str, int, int, dict[str, int]] = ("compute", "compute", 0, 100, {})


def reader(start: int) -> tuple[EventKind, str, int, int, dict[str, int]]:
    return "compute", "compute", start, start + 50, {"waits_for": 1}


@pytest.mark.parametrize(
    ("copied", "begins", "expected"),
    [
        (copy(20, 180), 185, [(100, 180)]),  # it begins soon after the copy
        (copy(20, 180), 900, [(100, 180)]),  # the host launched it late
        (copy(20, 60), 900, []),  # and the copy had ended before: nothing was waited for
        (copy(100, 200, "compute"), 203, []),  # a copy in line is time of its own
        (copy(20, 300), 300, [(100, 300)]),
    ],
)
def test_a_wait_ends_with_the_copy(
    copied: tuple[EventKind, str, int, int, dict[str, int]], begins: int, expected: list[tuple[int, int]]
) -> None:
    assert waits(BEFORE, copied, reader(begins)) == expected
