"""Collects what a pass does as marks (events on streams) and turns them into records after the pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from executor.devices.base import Device, Event, StreamName
from executor.job import Ubatch
from executor.records import EventKind, EventRecord


@dataclass(slots=True)
class _Span:
    device: Device
    stream: StreamName
    kind: EventKind
    name: str
    ubatch: Ubatch
    start: Event
    end: Event
    fields: dict[str, Any]


class PassTrace:
    """Start and end marks of every copy and compute interval of a pass.

    With `enabled` False nothing is marked beyond what ordering needs, which is how the recorder's own cost is
    measured. Marks are events: their times are read when the pass is over.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._spans: list[_Span] = []
        self._next_copy = 0
        self.bytes_h2d = 0

    def new_copy_id(self) -> int:
        """A number for a copy, from 1 in each pass (`EventRecord.correlation_id`)."""
        self._next_copy += 1
        return self._next_copy

    def count_h2d(self, n_bytes: int) -> None:
        """Count bytes that cross the bus towards a device, whether or not marks are kept."""
        self.bytes_h2d += n_bytes

    def mark(self, device: Device, stream: StreamName) -> Event | None:
        """A mark at the stream's present end; None when recording is off."""
        if not self.enabled:
            return None
        event = device.event()
        device.record(stream, event)
        return event

    def add(
        self,
        device: Device,
        stream: StreamName,
        kind: EventKind,
        name: str,
        ubatch: Ubatch,
        start: Event | None,
        end: Event | None,
        **fields: Any,
    ) -> None:
        """Keep an interval between two marks; `fields` are EventRecord's others."""
        if start is None or end is None:
            return
        self._spans.append(_Span(device, stream, kind, name, ubatch, start, end, fields))

    def records(self) -> list[EventRecord]:
        """All intervals with their times, and a `wait` row for each gap before work that waited for a copy."""
        rows: list[EventRecord] = []
        last_end: dict[tuple[int, StreamName], int] = {}
        for span in self._spans:
            row = EventRecord(
                kind=span.kind,
                name=span.name,
                t_start=span.device.time_ns(span.start),
                t_end=span.device.time_ns(span.end),
                device=span.device.index,
                stream=span.stream,
                phase=span.ubatch.phase,
                ubatch=span.ubatch.number,
                n_tokens=span.ubatch.n_tokens,
                **span.fields,
            )
            key = (row.device, span.stream)
            before = last_end.get(key, 0)
            if row.waits_for is not None and row.t_start > before:
                rows.append(_wait_row(row, before))
            last_end[key] = row.t_end
            rows.append(row)
        return rows


def _wait_row(row: EventRecord, since_ns: int) -> EventRecord:
    return EventRecord(
        kind="wait",
        name="wait for copy",
        t_start=since_ns,
        t_end=row.t_start,
        device=row.device,
        stream=row.stream,
        phase=row.phase,
        ubatch=row.ubatch,
        layer=row.layer,
        tensor=row.tensor,
        n_tokens=row.n_tokens,
        waits_for=row.waits_for,
    )
