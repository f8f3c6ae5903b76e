"""A device that notes the order of what it is asked to do, and passes it on: for `hprof check`.

It notes what each launch and copy reads and writes, what events are recorded and waited for, and what the issuing
thread touches itself. It adds no work to a stream, so what is recorded is the order that the engine made.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from executor.devices.base import (
    CopyRange,
    Device,
    Event,
    ReplayKey,
    StreamName,
    Touched,
    Touches,
    Work,
    whole_copy_range,
)
from executor.devices.delegating import DelegatingDevice
from executor.passes import THREAD, OrderingOp, OrderingRecord, TaggedRange

_VIRTUAL_ALIGNMENT = 1 << 12


@dataclass(frozen=True, slots=True)
class _Named:
    """Host memory whose content has a name."""

    start: int
    end: int
    name: str


class AddressBook:
    """Where tensors lie: (space, from, to). Those of `sim` have no storage and get addresses of their own."""

    def __init__(self) -> None:
        self._virtual: dict[int, tuple[int, torch.UntypedStorage]] = {}  # kept alive, so that no number is used again
        self._next = _VIRTUAL_ALIGNMENT

    def locate(self, tensor: torch.Tensor) -> tuple[str, int, int]:
        """The bytes of a contiguous tensor."""
        n_bytes = tensor.numel() * tensor.element_size()
        if tensor.device.type != "meta":
            start = tensor.data_ptr()
            return str(tensor.device), start, start + n_bytes
        start = self._virtual_base(tensor.untyped_storage()) + int(tensor.storage_offset()) * tensor.element_size()
        return "sim", start, start + n_bytes

    def _virtual_base(self, storage: torch.UntypedStorage) -> int:
        known = self._virtual.get(storage._cdata)
        if known is None:
            known = self._next, storage
            self._virtual[storage._cdata] = known
            self._next += -(-storage.nbytes() // _VIRTUAL_ALIGNMENT) * _VIRTUAL_ALIGNMENT + _VIRTUAL_ALIGNMENT
        return known[0]


class OrderingLog:
    """What the devices of one session were asked to do in the pass under way."""

    def __init__(self) -> None:
        self._book = AddressBook()
        self._named: dict[str, list[_Named]] = {}
        self._records: list[OrderingRecord] = []
        self._unlabelled: dict[int, list[OrderingRecord]] = {}
        self._numbers: dict[int, int] = {}
        self._generations: dict[int, int] = {}
        self._events: list[Event] = []  # kept alive, so that no `id` is used again in a pass

    def name(self, tensor: torch.Tensor, name: str) -> None:
        """Say what the bytes of a host tensor are (from now on); copies carry the name to where they put them."""
        space, start, end = self._book.locate(tensor)
        named = self._named[space] = [one for one in self._named.get(space, []) if one.start != start]
        named.append(_Named(start, end, name))
        named.sort(key=lambda one: one.start)

    def name_as(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        """Say that a host tensor has from now on what `source` has."""
        space, start, end = self._book.locate(source)
        named = self._find(space, start, min(end, start + tensor.numel()))
        if named is not None:
            self.name(tensor, named.name)

    def begin_pass(self) -> None:
        """Forget the pass before; the named bytes are there from the start."""
        self._records.clear()
        self._unlabelled.clear()
        self._numbers.clear()
        self._generations.clear()
        self._events.clear()
        weights = [
            (space, one.start, one.end, _tag(one, one.start)) for space, named in self._named.items() for one in named
        ]
        if weights:
            self._records.append(OrderingRecord(0, THREAD, "alloc", 0, writes=weights, name="weights in host memory"))

    def take(self) -> list[OrderingRecord]:
        """The pass's records, in the order in which they were issued."""
        return list(self._records)

    def add(
        self,
        device: Device,
        stream: str,
        op: OrderingOp,
        event: Event | None = None,
        reads: Sequence[TaggedRange] = (),
        writes: Sequence[TaggedRange] = (),
        name: str | None = None,
    ) -> None:
        """Note one operation. `record` counts the event's generation up."""
        number = None if event is None else self._number(event)
        if number is not None and op == "record":
            self._generations[number] = self._generations.get(number, 0) + 1
        record = OrderingRecord(
            sequence=len(self._records),
            stream=stream,
            op=op,
            t_issued=device.now_ns(),
            event=number,
            generation=None if number is None else self._generations.get(number, 0),
            reads=list(reads),
            writes=list(writes),
            device=device.index,
            name=name,
        )
        self._records.append(record)
        self._unlabelled.setdefault(device.index, []).append(record)

    def label(self, device: Device, name: str, ubatch: int, layer: int | None) -> None:
        """Give the device's operations since the last label their place."""
        for record in self._unlabelled.pop(device.index, ()):
            record.ubatch, record.layer, record.name = ubatch, layer, record.name or name

    def plain(self, tensors: Sequence[torch.Tensor]) -> Iterator[TaggedRange]:
        """Ranges of which only the order matters."""
        for tensor in tensors:
            space, start, end = self._book.locate(tensor)
            if end > start:
                yield space, start, end, ""

    def sources(self, ranges: Sequence[CopyRange]) -> Iterator[TaggedRange]:
        """What copies read."""
        for piece in ranges:
            space, start, _ = self._book.locate(piece.source)
            start += piece.source_from
            named = self._find(space, start, start + piece.n_bytes)
            yield space, start, start + piece.n_bytes, "" if named is None else _tag(named, named.start)

    def targets(self, ranges: Sequence[CopyRange]) -> Iterator[TaggedRange]:
        """What copies write, with the name of what they read and where its first byte would lie there."""
        for piece in ranges:
            space, start, _ = self._book.locate(piece.target)
            start += piece.target_from
            source_space, source, _ = self._book.locate(piece.source)
            source += piece.source_from
            named = self._find(source_space, source, source + piece.n_bytes)
            tag = "" if named is None else _tag(named, start - (source - named.start))
            yield space, start, start + piece.n_bytes, tag

    def _find(self, space: str, start: int, end: int) -> _Named | None:
        named = self._named.get(space, [])
        at = bisect_right(named, start, key=lambda one: one.start) - 1
        return named[at] if at >= 0 and end <= named[at].end else None

    def _number(self, event: Event) -> int:
        known = self._numbers.get(id(event))
        if known is None:
            known = self._numbers[id(event)] = len(self._numbers)
            self._events.append(event)
        return known


def _tag(named: _Named, first_byte: int) -> str:
    """`blk.3.ffn_up@4096`: bytes of that tensor, laid out as if its first one were at 4096.

    So two ranges have the same tag only where each byte is the same byte of the same tensor.
    """
    return f"{named.name}@{first_byte}"


class RecordingDevice(DelegatingDevice):
    """`inner`, and a note in `log` of all that it is asked to do."""

    def __init__(self, inner: Device, log: OrderingLog) -> None:
        super().__init__(inner)
        self._log = log

    def record(self, stream: StreamName, event: Event) -> None:
        self._log.add(self, stream, "record", event)
        self._inner.record(stream, event)

    def wait(self, stream: StreamName, event: Event) -> None:
        self._log.add(self, stream, "wait", event)
        self._inner.wait(stream, event)

    def synchronize(self, event: Event) -> None:
        self._inner.synchronize(event)
        self._log.add(self, THREAD, "sync", event)

    def launch(
        self,
        stream: StreamName,
        fn: Callable[[], None],
        work: Work,
        key: ReplayKey | None = None,
        touches: Touches | None = None,
    ) -> None:
        reads, writes = self._ranges(touches() if touches is not None else Touched())
        self._log.add(self, stream, "launch", reads=reads, writes=writes)
        self._inner.launch(stream, fn, work, key)

    def on_thread(self, name: str, touches: Touches) -> None:
        reads, writes = self._ranges(touches())
        self._log.add(self, THREAD, "launch", reads=reads, writes=writes, name=name)

    def copy_in(self, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        log = self._log
        log.add(self, stream, "copy", reads=list(log.sources(ranges)), writes=list(log.targets(ranges)))
        self._inner.copy_in(stream, ranges)

    def copy_out(self, stream: StreamName, source: torch.Tensor, target: torch.Tensor) -> None:
        log, whole = self._log, [whole_copy_range(source, target)]
        log.add(self, stream, "copy", reads=list(log.sources(whole)), writes=list(log.targets(whole)))
        self._inner.copy_out(stream, source, target)

    def label(self, name: str, ubatch: int, layer: int | None) -> None:
        self._log.label(self, name, ubatch, layer)

    def _ranges(self, touched: Touched) -> tuple[list[TaggedRange], list[TaggedRange]]:
        log = self._log
        reads = [*log.plain(touched.reads), *log.targets(touched.holds)]
        return reads, [*log.plain(touched.writes), *log.targets(touched.fills)]
