"""Marks what a pass does: as events on streams, which become records, and as NVTX ranges of domain `hprof`.

Events' times are read after the pass. NVTX attributes are built once and kept: a push costs about a microsecond
when no tool listens (`benchmarks/recording_overhead.py`). `executor.tracing.nvtx_names` says how the names read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, Literal

import nvtx

from executor.devices.base import Device, Event, StreamName
from executor.passes import EventKind, EventRecord, PassJob, Ubatch
from executor.tracing.nvtx_names import (
    DOMAIN,
    Category,
    PassName,
    StepName,
    UbatchName,
    format_pass,
    format_step,
    format_ubatch,
)

_domain = nvtx.get_domain(DOMAIN)


class NvtxRange:
    """A context manager that pushes one prepared range; reusable, and it nests."""

    __slots__ = ("attributes",)

    def __init__(self, attributes: object) -> None:
        self.attributes = attributes

    def __enter__(self) -> None:
        _domain.push_range(self.attributes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _domain.pop_range()


def _attributes(message: str, category: Category | None = None, payload: int | None = None) -> Any:
    return _domain.get_event_attributes(message=message, color=None, category=category, payload=payload)


def pass_range(job: PassJob) -> NvtxRange:
    """The range of a whole pass."""
    name = PassName(
        job.pass_id, job.arm, job.n_ubatch, job.n_depth, job.n_prompt, job.n_gen, job.repetition, job.warmup
    )
    return NvtxRange(_attributes(format_pass(name)))


def ubatch_range(ubatch: Ubatch) -> NvtxRange:
    """The range of a ubatch."""
    return NvtxRange(_attributes(format_ubatch(UbatchName(ubatch.number, ubatch.phase, ubatch.n_tokens))))


@lru_cache(maxsize=4096)
def copy_range(layer: int | None, tensor: str | None, what: str, n_bytes: int) -> NvtxRange:
    """The range of a copy; its payload is the bytes. No tensor: what moves is no weight (`nvtx_names` lists what)."""
    return NvtxRange(_attributes(format_step(StepName(layer, what, tensor)), "copy", n_bytes))


@lru_cache(maxsize=4096)
def compute_range(layer: int | None, what: str) -> NvtxRange:
    """The range of a computed part."""
    return NvtxRange(_attributes(format_step(StepName(layer, what)), "compute"))


Inside = Literal["nothing", "begin", "begin and end"]


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
        self._known: list[EventRecord] = []
        self._next_copy = 0
        self.bytes_h2d = 0

    def new_copy_id(self) -> int:
        """A number for a copy, from 1 in each pass (`EventRecord.correlation_id`)."""
        self._next_copy += 1
        return self._next_copy

    def count_h2d(self, n_bytes: int) -> None:
        """Count bytes that cross the bus towards a device, whether or not marks are kept."""
        self.bytes_h2d += n_bytes

    def mark(self, device: Device, stream: StreamName, inside: Inside = "nothing") -> Event | None:
        """A mark at the stream's present end; None when recording is off.

        `inside` says which marks of the step that follows its own kernels can make (`tracing.token_trace`).
        """
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
        device.label(name, ubatch.number, fields.get("layer"))
        if start is None or end is None:
            return
        self._spans.append(_Span(device, stream, kind, name, ubatch, start, end, fields))

    def add_known(self, rows: Iterable[EventRecord]) -> None:
        """Keep intervals whose times are known."""
        self._known.extend(rows)

    def records(self) -> list[EventRecord]:
        """All intervals with their times, and a `wait` row for each time in which work waited for a copy."""
        rows = [self._record(span) for span in self._spans]
        copied_ns: dict[int, int] = {}  # by the copies' numbers
        for row in rows:
            if row.correlation_id is not None:
                copied_ns[row.correlation_id] = max(row.t_end, copied_ns.get(row.correlation_id, row.t_end))
        found: list[EventRecord] = []
        last_end: dict[tuple[int, str | None], int] = {}
        for row in rows:
            key = (row.device, row.stream)
            before = last_end.get(key, 0)
            if row.waits_for is not None:
                # what follows the copy's end, the host was late
                until = min(copied_ns.get(row.waits_for, row.t_start), row.t_start)
                if until > before:
                    found.append(_wait_row(row, before, until))
            last_end[key] = row.t_end
            found.append(row)
        return found + self._known

    @staticmethod
    def _record(span: _Span) -> EventRecord:
        return EventRecord(
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


def _wait_row(row: EventRecord, since_ns: int, until_ns: int) -> EventRecord:
    return EventRecord(
        kind="wait",
        name="wait for copy",
        t_start=since_ns,
        t_end=until_ns,
        device=row.device,
        stream=row.stream,
        phase=row.phase,
        ubatch=row.ubatch,
        layer=row.layer,
        tensor=row.tensor,
        n_tokens=row.n_tokens,
        waits_for=row.waits_for,
    )
