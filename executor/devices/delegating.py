"""A device that passes everything on to another one: what wrappers of a device are made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from executor.devices.base import CopyRange, Device, Event, ReplayKey, SourceMemory, StreamName, Touches, Work


class DelegatingDevice(Device):
    """`inner`, as it is."""

    def __init__(self, inner: Device) -> None:
        super().__init__()
        self._inner = inner
        self.kind, self.index, self.torch_device = inner.kind, inner.index, inner.torch_device
        self.replays, self.link_gb_s = inner.replays, inner.link_gb_s

    def record(self, stream: StreamName, event: Event) -> None:
        self._inner.record(stream, event)

    def wait(self, stream: StreamName, event: Event) -> None:
        self._inner.wait(stream, event)

    def synchronize(self, event: Event) -> None:
        self._inner.synchronize(event)

    def launch(
        self,
        stream: StreamName,
        fn: Callable[[], None],
        work: Work,
        key: ReplayKey | None = None,
        touches: Touches | None = None,
    ) -> None:
        self._inner.launch(stream, fn, work, key, touches)

    def copy_in(self, stream: StreamName, ranges: Sequence[CopyRange]) -> None:
        self._inner.copy_in(stream, ranges)

    def copy_out(self, stream: StreamName, source: torch.Tensor, target: torch.Tensor) -> None:
        self._inner.copy_out(stream, source, target)

    def on_thread(self, name: str, touches: Touches) -> None:
        self._inner.on_thread(name, touches)

    def label(self, name: str, ubatch: int, layer: int | None) -> None:
        self._inner.label(name, ubatch, layer)

    @property
    def reserved_bytes(self) -> int:
        return self._inner.reserved_bytes

    def allocate(self, n_bytes: int, label: str) -> torch.Tensor:
        return self._inner.allocate(n_bytes, label)

    def release(self, buffer: torch.Tensor) -> None:
        self._inner.release(buffer)

    def host_slab(self, n_bytes: int, *, pinned: bool) -> torch.Tensor:
        return self._inner.host_slab(n_bytes, pinned=pinned)

    def register(self, memory: torch.Tensor) -> None:
        self._inner.register(memory)

    def source_memory(self, *, is_pinned: bool) -> SourceMemory | None:
        return self._inner.source_memory(is_pinned=is_pinned)

    def event(self) -> Event:
        return self._inner.event()

    def time_ns(self, event: Event) -> int:
        return self._inner.time_ns(event)

    def now_ns(self) -> int:
        return self._inner.now_ns()

    def begin_pass(self) -> None:
        self._inner.begin_pass()

    def drain(self) -> None:
        self._inner.drain()

    def recycle(self) -> None:
        self._inner.recycle()

    def peak_bytes(self) -> int | None:
        return self._inner.peak_bytes()

    def close(self) -> None:
        self._inner.close()
