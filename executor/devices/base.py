"""The Device seam: streams, events, memory, copies and launches, the same for `cpu`, `cuda` and `sim`.

The engine and the policies speak to this interface alone. A device has three in-order streams: `compute`,
`copy` and `host` (work on the CPU in the `cpu` regime). Everything is issued from one host thread; nothing
here blocks it except `synchronize`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from executor.errors import HprofError

StreamName = Literal["compute", "copy", "host"]
DeviceKind = Literal["cpu", "cuda", "sim"]
SourceMemory = Literal["pinned", "pageable"]
STREAMS: tuple[StreamName, ...] = ("compute", "copy", "host")


@dataclass(frozen=True, slots=True)
class Work:
    """What a launch costs, for the `sim` device: floating-point operations, and bytes of memory it touches."""

    flops: float = 0.0
    n_bytes: float = 0.0


class ReplayKey(NamedTuple):
    """What a launch depends on: which step it is, and what differs from time to time (its slot, its position)."""

    step: Hashable
    variant: Hashable


class RecordedWork:
    """Work of one stream that a device recorded (`Device.record_work`) and replays."""

    __slots__ = ()


class Event:
    """A point in a stream: recorded once a use, waited for by streams or by the host, and it tells its time.

    Recorded again, it is a new point: who waits later waits for that one, who waits already for the one before.
    Taken from the device's pool with `Device.event()` and given back by `Device.recycle()` after a pass.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class CopyRange:
    """A piece of a copy: `n_bytes` from `source[source_from:]` to `target[target_from:]` (1-D uint8 tensors)."""

    source: torch.Tensor
    source_from: int
    target: torch.Tensor
    target_from: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Touched:
    """The memory that queued work touches, as a recorder of the order needs it (`executor.devices.recording`).

    `holds` are contents that the work relies on, each as the copy that would have put it there: it reads the target
    and expects the source's bytes. `fills` are contents that it puts there itself.
    """

    reads: Sequence[torch.Tensor] = ()
    writes: Sequence[torch.Tensor] = ()
    holds: Sequence[CopyRange] = ()
    fills: Sequence[CopyRange] = ()


Touches = Callable[[], Touched]
"""Asked only where the order is recorded."""


def whole_copy_range(source: torch.Tensor, target: torch.Tensor) -> CopyRange:
    """A copy of one tensor's bytes into another of the same size."""
    raw_source, raw_target = source.view(torch.uint8).flatten(), target.view(torch.uint8).flatten()
    return CopyRange(raw_source, 0, raw_target, 0, raw_source.numel())


class Device(ABC):
    """One accelerator. Times are ns since the last `begin_pass`."""

    kind: DeviceKind
    index: int
    torch_device: torch.device
    """Where tensors live: "cpu", "cuda:N", or "meta" for `sim`."""
    replays: bool = False
    """Whether it records launches that have a key and replays them."""
    records_work: bool = False
    """Whether it records whatever is issued to a stream, with stamps of its clock in between."""
    holds: bool = False
    """Whether its streams can be made to wait for the host's word (`hold`)."""
    link_gb_s: float | None
    """The host-to-device ceiling: configured (cpu, sim) or measured (cuda)."""

    def __init__(self) -> None:
        self._held: dict[int, torch.Tensor] = {}

    @abstractmethod
    def allocate(self, n_bytes: int, label: str) -> torch.Tensor:
        """Reserve device memory up front: a 1-D uint8 tensor, counted in `reserved_bytes`.

        Raises HprofError with what was asked and what is free when it does not fit.
        """

    @abstractmethod
    def host_slab(self, n_bytes: int, *, pinned: bool) -> torch.Tensor:
        """Host memory that copies start from: a 1-D uint8 tensor, 64-byte aligned."""

    def register(self, memory: torch.Tensor) -> None:  # noqa: B027 - nothing to pin outside CUDA
        """Pin host memory in place, so that copies from it are asynchronous."""

    def source_memory(self, *, is_pinned: bool) -> SourceMemory | None:
        """What copies from such host memory are recorded as; None where no copy engine makes a difference."""
        return None

    @abstractmethod
    def event(self) -> Event:
        """An unrecorded event from the pool."""

    @abstractmethod
    def record(self, stream: StreamName, event: Event) -> None:
        """The event happens when everything queued on `stream` so far is done."""

    @abstractmethod
    def wait(self, stream: StreamName, event: Event) -> None:
        """Later work on `stream` starts after the event. The host does not block."""

    @abstractmethod
    def synchronize(self, event: Event) -> None:
        """Block the host until the event."""

    @abstractmethod
    def time_ns(self, event: Event) -> int:
        """When a finished event happened, in ns since `begin_pass`."""

    @abstractmethod
    def launch(
        self,
        stream: StreamName,
        fn: Callable[[], None],
        work: Work,
        key: ReplayKey | None = None,
        touches: Touches | None = None,
    ) -> None:
        """Queue `fn` on `stream`. `sim` advances its clock by `work` and does not call it.

        With a `key`, `fn` does the same to the same memory whenever the key is the same, so that a device may
        record what it launches and replay that. `touches` says what `fn` reads and writes.
        """

    def record_work(self, stream: StreamName, issue: Callable[[], None]) -> RecordedWork:
        """Record what `issue` launches, copies and stamps on `stream`, and run nothing of it.

        It must have run once before, waits for no event and records none.
        """
        raise NotImplementedError

    def replay(self, stream: StreamName, recording: RecordedWork) -> None:
        """Queue recorded work on the stream that it was recorded on."""
        raise NotImplementedError

    def hold(self, stream: StreamName) -> Callable[[], None]:
        """What follows on `stream` waits until the function that this gives is called, which must be: even if what the
        host does until then fails. To call it again does nothing.

        Until then nothing may be asked of the device that waits for it, nor anything for the first time: what libraries
        do then may wait as well.
        """
        raise NotImplementedError

    def stamp(self, stream: StreamName, into: torch.Tensor) -> None:
        """Queue a reading of the device's clock into `into` (1,) int64 on the device; `stamped_ns` understands it."""
        raise NotImplementedError

    def stamped_ns(self, stamp: int) -> int:
        """When a stamp of this pass was written, in ns since `begin_pass`."""
        raise NotImplementedError

    @abstractmethod
    def copy_in(self, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        """Queue host-to-device copies on `stream`, one bus transfer a range."""

    @abstractmethod
    def copy_out(self, stream: StreamName, source: torch.Tensor, target: torch.Tensor) -> None:
        """Queue a device-to-host copy of a whole (small) tensor."""

    def on_thread(self, name: str, touches: Touches) -> None:  # noqa: B027 - asked only where the order is recorded
        """The issuing thread itself reads or writes memory that copies use, now."""

    def label(self, name: str, ubatch: int, layer: int | None) -> None:  # noqa: B027
        """What was issued since the last label belongs to this step; for a recorder of the order."""

    @abstractmethod
    def now_ns(self) -> int:
        """The host's clock, in ns since `begin_pass`."""

    @abstractmethod
    def begin_pass(self) -> None:
        """Drain the device and set the clock to zero."""

    @abstractmethod
    def drain(self) -> None:
        """Block the host until all streams are empty; raise what a queued function raised."""

    @abstractmethod
    def recycle(self) -> None:
        """Give all events back to the pool. Call when their times have been read."""

    @property
    def reserved_bytes(self) -> int:
        """Bytes that `allocate` handed out and that are still held."""
        return sum(buffer.numel() for buffer in self._held.values())

    def release(self, buffer: torch.Tensor) -> None:
        """Give back what `allocate` handed out."""
        self._held.pop(id(buffer), None)

    def _check_room(self, memory_bytes: int | None, n_bytes: int, label: str) -> None:
        """Raise HprofError where `n_bytes` more do not fit into a device of `memory_bytes` (None: no limit)."""
        if memory_bytes is not None and self.reserved_bytes + n_bytes > memory_bytes:
            raise HprofError(
                f"device {self.index} has {memory_bytes - self.reserved_bytes:,} bytes free and {label} needs "
                f"{n_bytes:,}: keep fewer layers resident (-ot, -ncmoe), use a smaller -ub, or raise the memory limit"
            )

    def _hold(self, buffer: torch.Tensor) -> torch.Tensor:
        """Count a buffer as reserved until it is released."""
        self._held[id(buffer)] = buffer
        return buffer

    @abstractmethod
    def peak_bytes(self) -> int | None:
        """The most device memory held at once since `begin_pass`; None where nothing measures it."""

    def close(self) -> None:  # noqa: B027 - most devices have nothing to close
        """Stop worker threads and free memory."""
