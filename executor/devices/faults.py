"""Faults that real engines had, each as a device that does one thing wrong: for `hprof run --inject`.

A faulty device stands between the engine and the device that records, so the engine stays as it is and what is
recorded is what was really issued. `hprof check` must find each, and name it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Final

import torch

from executor.devices.base import (
    CopyRange,
    Device,
    Event,
    ReplayKey,
    SourceMemory,
    StreamName,
    Touched,
    Touches,
    Work,
)
from executor.devices.delegating import DelegatingDevice
from executor.devices.recording import OrderingLog

_NTH_COPY: Final = 3  # of a pass on the copy stream: the first that goes to a slot which another copy had before


class FaultyDevice(DelegatingDevice):
    """Knows on which stream each event was recorded, and counts a pass's copies on the copy stream."""

    def __init__(self, inner: Device, log: OrderingLog) -> None:
        super().__init__(inner)
        self._log = log
        self._recorded_on: dict[int, StreamName] = {}
        self._n_ahead = 0

    def record(self, stream: StreamName, event: Event) -> None:
        self._recorded_on[id(event)] = stream
        super().record(stream, event)

    def copy_in(self, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        self._n_ahead += stream == "copy"
        super().copy_in(stream, ranges)

    def begin_pass(self) -> None:
        self._recorded_on.clear()
        self._n_ahead = 0
        super().begin_pass()


class _WithoutWaits(FaultyDevice):
    """Leaves out what one stream waits for of another."""

    waiting: ClassVar[StreamName]
    awaited: ClassVar[StreamName]

    def wait(self, stream: StreamName, event: Event) -> None:
        if stream != self.waiting or self._recorded_on.get(id(event)) != self.awaited:
            super().wait(stream, event)


class DropWait(_WithoutWaits):
    """A step does not wait for the copy of its weights."""

    waiting, awaited = "compute", "copy"


class DropRefillWait(_WithoutWaits):
    """A copy does not wait for the last reader of its slot."""

    waiting, awaited = "copy", "compute"


class PrefetchUncomputed(FaultyDevice):
    """What the host computes is fetched before it is computed: the host begins once the copy back is queued."""

    def __init__(self, inner: Device, log: OrderingLog) -> None:
        super().__init__(inner, log)
        self._held_back: list[Callable[[], None]] = []
        self._is_fetched = False

    def record(self, stream: StreamName, event: Event) -> None:
        if stream == "host":
            self._recorded_on[id(event)] = stream
            self._held_back.append(partial(super().record, stream, event))
        else:
            super().record(stream, event)

    def wait(self, stream: StreamName, event: Event) -> None:
        if stream == "host":
            self._held_back.append(partial(super().wait, stream, event))
        elif self._recorded_on.get(id(event)) != "host":
            super().wait(stream, event)

    def launch(
        self,
        stream: StreamName,
        fn: Callable[[], None],
        work: Work,
        key: ReplayKey | None = None,
        touches: Touches | None = None,
    ) -> None:
        issue = partial(super().launch, stream, fn, work, key, touches)
        if stream == "host":
            self._held_back.append(issue)
        else:
            issue()

    def copy_in(self, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        super().copy_in(stream, ranges)
        self._is_fetched = bool(self._held_back)

    def label(self, name: str, ubatch: int, layer: int | None) -> None:
        if self._held_back and not self._is_fetched:
            self._held_back.append(partial(super().label, name, ubatch, layer))
            return
        super().label(name, ubatch, layer)
        self._go_on()

    def drain(self) -> None:
        self._go_on()
        super().drain()

    def _go_on(self) -> None:
        held_back, self._held_back, self._is_fetched = self._held_back, [], False
        for issue in held_back:
            issue()


class LateRecord(FaultyDevice):
    """A copy's event is recorded only after the step has waited for it, so the step waits for nothing."""

    def __init__(self, inner: Device, log: OrderingLog) -> None:
        super().__init__(inner, log)
        self._late: dict[int, Event] = {}
        self._has_copied = False

    def copy_in(self, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        super().copy_in(stream, ranges)
        self._has_copied |= stream == "copy"

    def record(self, stream: StreamName, event: Event) -> None:
        if stream == "copy" and self._has_copied:  # what is recorded before a copy is when it begins
            self._late[id(event)], self._has_copied = event, False
        else:
            super().record(stream, event)

    def wait(self, stream: StreamName, event: Event) -> None:
        super().wait(stream, event)
        if self._late.pop(id(event), None) is not None:
            super().record("copy", event)

    def drain(self) -> None:
        for event in self._late.values():
            super().record("copy", event)
        self._late.clear()
        super().drain()


class StaleGeneration(FaultyDevice):
    """Each slot has one event, which is recorded again for every copy; a step waits just before the record of its own
    copy, and so for that of the copy before it into the same slot."""

    def __init__(self, inner: Device, log: OrderingLog) -> None:
        super().__init__(inner, log)
        self._of_slot: dict[int, Event] = {}
        self._unrecorded: dict[int, Event] = {}  # the engine's event of a copy -> its slot's
        self._slot = 0

    def begin_pass(self) -> None:
        self._of_slot.clear()
        super().begin_pass()

    def copy_in(self, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        if stream == "copy":
            self._slot = id(ranges[0].target)
        super().copy_in(stream, ranges)

    def record(self, stream: StreamName, event: Event) -> None:
        super().record(stream, event)  # the engine's own still tells the copy's time
        if stream == "copy":
            if self._slot not in self._of_slot:
                self._of_slot[self._slot] = self.event()
            self._unrecorded[id(event)] = self._of_slot[self._slot]

    def wait(self, stream: StreamName, event: Event) -> None:
        of_slot = self._unrecorded.pop(id(event), None)
        if of_slot is None:
            super().wait(stream, event)
            return
        super().wait(stream, of_slot)
        super().record("copy", of_slot)

    def drain(self) -> None:
        self._unrecorded.clear()
        super().drain()


class WrongSlot(FaultyDevice):
    """One copy goes to the slot of the copy before it."""

    def __init__(self, inner: Device, log: OrderingLog) -> None:
        super().__init__(inner, log)
        self._last: torch.Tensor | None = None

    def copy_in(self, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        if stream == "copy":
            last, self._last = self._last, ranges[0].target
            if last is not None and self._n_ahead == _NTH_COPY - 1:
                ranges = [replace(piece, target=last) for piece in ranges]
        super().copy_in(stream, ranges)


class SwallowError(FaultyDevice):
    """One copy fails, and nobody looks at the error."""

    def copy_in(self, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        is_failing = stream == "copy" and self._n_ahead == _NTH_COPY - 1
        super().copy_in(stream, () if is_failing else ranges)


class RefillPinned(FaultyDevice):
    """Copies start from one pinned buffer, which the thread fills again while the copy before is under way."""

    def __init__(self, inner: Device, log: OrderingLog) -> None:
        super().__init__(inner, log)
        self._staging: torch.Tensor | None = None

    def copy_in(self, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        if stream == "copy" and len(ranges) == 1 and not ranges[0].source_from:
            ranges = [self._staged(ranges[0])]
        super().copy_in(stream, ranges)

    def _staged(self, piece: CopyRange) -> CopyRange:
        if self._staging is None or self._staging.numel() < piece.n_bytes:
            self._staging = self.host_slab(piece.n_bytes, pinned=True)
        fill = CopyRange(piece.source, 0, self._staging, 0, piece.n_bytes)
        self.on_thread("refill the pinned buffer", lambda: Touched(fills=[fill]))
        if self.kind != "sim":
            self._staging[: piece.n_bytes].copy_(piece.source[: piece.n_bytes])
        self._log.name_as(self._staging[: piece.n_bytes], piece.source)
        return replace(piece, source=self._staging)


class OverlappingViews(FaultyDevice):
    """The second slot of each kind begins in the middle of the first."""

    def __init__(self, inner: Device, log: OrderingLog) -> None:
        super().__init__(inner, log)
        self._first: dict[str, torch.Tensor] = {}

    def allocate(self, n_bytes: int, label: str) -> torch.Tensor:
        shift, kind = n_bytes // 2 // 256 * 256, label.partition(" for ")[2]
        if label.startswith("slot 0 for "):
            self._first[kind] = super().allocate(n_bytes + shift, label)
            return self._first[kind][:n_bytes]
        if label.startswith("slot 1 for ") and kind in self._first:
            return self._first[kind][shift : shift + n_bytes]
        return super().allocate(n_bytes, label)


class FreeInFlight(FaultyDevice):
    """A slot is freed while its copy is under way, and another stream gets its memory."""

    def copy_in(self, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        super().copy_in(stream, ranges)
        if stream == "copy" and self._n_ahead == _NTH_COPY:
            taken = [piece.target[piece.target_from : piece.target_from + piece.n_bytes] for piece in ranges]
            other: StreamName = "compute" if self.kind == "cuda" else "host"  # on cuda `host` is the thread itself
            self.launch(other, partial(_fill_all, taken), Work(), touches=lambda: Touched(writes=taken))


def _fill_all(tensors: Sequence[torch.Tensor]) -> None:
    for tensor in tensors:
        tensor.fill_(255)


class PrefetchBank(FaultyDevice):
    """What the expert cache's bank lacks is copied on the copy stream, which nobody orders with the bank's readers."""

    def __init__(self, inner: Device, log: OrderingLog) -> None:
        super().__init__(inner, log)
        self._banks: set[int] = set()

    def allocate(self, n_bytes: int, label: str) -> torch.Tensor:
        buffer = super().allocate(n_bytes, label)
        if label.startswith("the expert cache's bank"):
            self._banks.add(id(buffer))
        return buffer

    def copy_in(self, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        into_bank = [piece for piece in ranges if id(piece.target) in self._banks]
        if into_bank:
            super().copy_in("copy", into_bank)
        super().copy_in(stream, [piece for piece in ranges if id(piece.target) not in self._banks])


class PageableSource(FaultyDevice):
    """Nothing is pinned. CUDA's driver then stages each copy on the calling thread; here the thread waits for it."""

    def host_slab(self, n_bytes: int, *, pinned: bool) -> torch.Tensor:
        return super().host_slab(n_bytes, pinned=False)

    def register(self, memory: torch.Tensor) -> None:
        """Leave it pageable."""

    def source_memory(self, *, is_pinned: bool) -> SourceMemory | None:
        return "pageable"

    def copy_in(self, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        super().copy_in(stream, ranges)
        if self.kind != "cuda":
            crossed = self.event()
            self.record(stream, crossed)
            self.synchronize(crossed)


class LateIssue(FaultyDevice):
    """What goes ahead on the copy stream is queued only when a step waits for it, and begins when that step could."""

    def __init__(self, inner: Device, log: OrderingLog) -> None:
        super().__init__(inner, log)
        self._waiting: list[tuple[Event | None, Callable[[], None]]] = []

    def record(self, stream: StreamName, event: Event) -> None:
        issue = partial(super().record, stream, event)
        if stream == "copy":
            self._waiting.append((event, issue))
        else:
            issue()

    def copy_in(self, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        issue = partial(super().copy_in, stream, ranges)
        if stream == "copy":
            self._waiting.append((None, issue))
        else:
            issue()

    def wait(self, stream: StreamName, event: Event) -> None:
        issue = partial(super().wait, stream, event)
        if stream == "copy":
            self._waiting.append((None, issue))
            return
        if any(held is event for held, _ in self._waiting):
            self._issue(event)
        issue()

    def drain(self) -> None:
        self._issue(None)
        super().drain()

    def _issue(self, until: Event | None) -> None:
        """All that is held back, up to the record of `until`, behind what the compute stream has to do before."""
        if until is not None:
            ready = self.event()
            super().record("compute", ready)
            super().wait("copy", ready)
        while self._waiting:
            event, issue = self._waiting.pop(0)
            issue()
            if until is not None and event is until:
                return


FAULTS: Final[dict[str, type[FaultyDevice]]] = {
    "drop-wait": DropWait,
    "drop-refill-wait": DropRefillWait,
    "late-record": LateRecord,
    "stale-generation": StaleGeneration,
    "wrong-slot": WrongSlot,
    "refill-pinned": RefillPinned,
    "overlapping-views": OverlappingViews,
    "free-in-flight": FreeInFlight,
    "prefetch-bank": PrefetchBank,
    "prefetch-uncomputed": PrefetchUncomputed,
    "swallow-error": SwallowError,
    "pageable-source": PageableSource,
    "late-issue": LateIssue,
}
"""By the names of `executor.fault_names`."""
