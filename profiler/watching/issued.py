"""What was issued, on which stream, touching which bytes: the records that `profiler.ordering` checks.

All that watching sees ends here, whether torch.cuda or a stand-in in a test made it: operations with the ranges that
they read and write, events recorded and waited for, and what the issuing thread waits for itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from executor.errors import HprofError
from executor.passes import THREAD, OrderingOp, OrderingRecord, TaggedRange
from profiler.ordering.check import CheckResult, find_violations
from profiler.ordering.operations import operations_of_records

MOST_RECORDS: Final = 1_000_000  # each takes about a kilobyte


class StreamKey(NamedTuple):
    """A stream of a device; `handle` is 0 for the default one."""

    device: int
    handle: int


class Issued:
    """Operations in the order of issue. Events are named by whatever tells them apart."""

    def __init__(self) -> None:
        self._records: list[OrderingRecord] = []
        self._streams: dict[StreamKey, str] = {}
        self._events: dict[object, int] = {}
        self._n_events = 0
        self._generations: dict[int, int] = {}
        self._began_ns = time.perf_counter_ns()

    def __len__(self) -> int:
        return len(self._records)

    def operation(
        self,
        stream: StreamKey | None,
        op: OrderingOp,
        name: str,
        reads: Sequence[TaggedRange] = (),
        writes: Sequence[TaggedRange] = (),
    ) -> OrderingRecord:
        """A launch, a copy or a free on a stream; None: the issuing thread does it itself, now."""
        record = self._add(stream, op)
        record.name = name
        record.reads += reads
        record.writes += writes
        return record

    def record(self, event: object, stream: StreamKey) -> None:
        """The event happens when the stream gets here."""
        number = self._number(event)
        self._generations[number] = self._generations.get(number, 0) + 1
        self._add(stream, "record", number)

    def wait(self, event: object, stream: StreamKey) -> None:
        """What comes later on the stream waits for the event."""
        self._add(stream, "wait", self._number(event))

    def sync_event(self, event: object) -> None:
        """The thread has waited for the event, or has seen that it happened."""
        self._add(None, "sync", self._number(event))

    def sync_stream(self, stream: StreamKey) -> None:
        """The thread has waited for all that the stream had to do."""
        end = object()
        self.record(end, stream)
        self.sync_event(end)
        self.forget(end)

    def sync_device(self, device: int) -> None:
        """The thread has waited for all that the device had to do."""
        for stream in [stream for stream in self._streams if stream.device == device]:
            self.sync_stream(stream)

    def forget(self, event: object) -> None:
        """The event is gone: the same name is another event from now on."""
        self._events.pop(event, None)

    def result(self) -> CheckResult:
        """Check all of it. The findings name no pass, as there is none."""
        result = find_violations(operations_of_records([self._records]))
        return replace(result, violations=tuple(replace(one, pass_id=None) for one in result.violations))

    def _add(self, stream: StreamKey | None, op: OrderingOp, event: int | None = None) -> OrderingRecord:
        if len(self._records) >= MOST_RECORDS:
            raise HprofError(
                f"hprof.check() has seen {MOST_RECORDS:,} operations, which is as many as it keeps: watch fewer steps"
            )
        record = OrderingRecord(
            sequence=0,  # its place tells: memory may be freed, and that be noted, between any two lines here
            stream=THREAD if stream is None else self._streams.setdefault(stream, self._name(stream)),
            op=op,
            t_issued=time.perf_counter_ns() - self._began_ns,
            event=event,
            generation=None if event is None else self._generations.get(event, 0),
            device=None if stream is None else stream.device,
        )
        self._records.append(record)
        return record

    def _name(self, stream: StreamKey) -> str:
        n_before = sum(other.device == stream.device and other.handle != 0 for other in self._streams)
        return "default" if stream.handle == 0 else str(n_before + 1)

    def _number(self, event: object) -> int:
        if event not in self._events:
            self._events[event] = self._n_events
            self._n_events += 1
        return self._events[event]
