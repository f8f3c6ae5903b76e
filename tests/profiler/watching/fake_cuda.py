"""What stands in for torch.cuda where there is no GPU: streams and events that only tell, and memory without storage.

Device tensors are "meta" tensors, so PyTorch dispatches on them all that it would on CUDA. Their addresses come from a
stand-in of the caching allocator: what is freed on a stream is what that stream gets next.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from profiler.watching.checking import Check
from profiler.watching.issued import Issued, StreamKey

DEVICE = torch.device("meta")


class FakeStream:
    """As torch.cuda.Stream."""

    def __init__(self, cuda: FakeCuda, handle: int) -> None:
        self._cuda = cuda
        self.key = StreamKey(0, handle)

    def wait_event(self, event: FakeEvent) -> None:
        event.wait(self)

    def record_event(self, event: FakeEvent | None = None) -> FakeEvent:
        event = event or self._cuda.Event()
        event.record(self)
        return event

    def wait_stream(self, other: FakeStream) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        self._cuda.issued.sync_stream(self.key)


class FakeEvent:
    """As torch.cuda.Event."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda

    def record(self, stream: FakeStream | None = None) -> None:
        self._cuda.issued.record(self, (stream or self._cuda.current_stream()).key)

    def wait(self, stream: FakeStream | None = None) -> None:
        self._cuda.issued.wait(self, (stream or self._cuda.current_stream()).key)

    def synchronize(self) -> None:
        self._cuda.issued.sync_event(self)


class FakeCuda:
    """A runtime to watch, with what loops ask of torch.cuda."""

    def __init__(self) -> None:
        self.issued = Issued()  # of nobody, until one listens
        self.check: Check | None = None
        self._current = FakeStream(self, 0)
        self._n_streams = 0
        self._pinned: set[int] = set()
        self._address: dict[int, int] = {}
        self._free: dict[tuple[StreamKey, int], list[int]] = {}
        self._next = 4096

    # what loops use

    def Stream(self) -> FakeStream:  # noqa: N802 - torch's name
        self._n_streams += 1
        return FakeStream(self, self._n_streams)

    def Event(self) -> FakeEvent:  # noqa: N802 - torch's name
        return FakeEvent(self)

    def current_stream(self, device: torch.device | None = None) -> Any:
        """As torch's; for the watch, which asks with a device, the key."""
        return self._current if device is None else self._current.key

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self._current = self._current, stream
        yield
        self._current = before

    def synchronize(self) -> None:
        self.issued.sync_device(0)

    def empty(self, n: int) -> torch.Tensor:
        return torch.empty(n, device=DEVICE)

    def pinned(self, n: int) -> torch.Tensor:
        tensor = torch.zeros(n)
        self._pinned.add(tensor.data_ptr())
        return tensor

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(DEVICE, non_blocking=True)

    def record_stream(self, tensor: torch.Tensor, stream: FakeStream) -> None:
        """`Tensor.record_stream` takes real streams alone."""
        assert self.check is not None
        self.check._watched.lend(tensor, stream.key)

    # what the watch uses

    def is_on_device(self, device: torch.device) -> bool:
        return device == DEVICE

    def key_of(self, stream: FakeStream) -> StreamKey:
        return stream.key

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._pinned

    def address(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        if tensor.device != DEVICE:
            return storage.data_ptr()
        known = self._address.get(storage._cdata)
        if known is None:
            pool = self._free.setdefault((self._current.key, storage.nbytes()), [])
            known = self._address[storage._cdata] = pool.pop() if pool else self._next
            self._next += storage.nbytes() + 512
            weakref.finalize(storage, self._give_back, storage._cdata, pool).atexit = False
        return known

    def call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Copies that do not say `non_blocking` wait for their stream, as those of torch.cuda do."""
        is_copy = func in (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)
        if not is_copy:
            return func(*args, **kwargs)
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        is_out = tensors[-1].device == DEVICE and tensors[0].device != DEVICE
        result = tensors[0] if is_out else func(*args, **kwargs)  # what is on the stand-in has no bytes
        crosses = is_out or any(one.device == DEVICE for one in (*tensors, result))
        if crosses and not (kwargs.get("non_blocking") or True in args[2:]):
            self._current.synchronize()
        return result

    @contextmanager
    def listening(self, issued: Issued) -> Iterator[None]:
        before, self.issued = self.issued, issued
        issued.sync_stream(self._current.key)
        yield
        self.issued = before

    def _give_back(self, cdata: int, pool: list[int]) -> None:
        pool.append(self._address.pop(cdata))


def watching() -> tuple[Check, FakeCuda]:
    """A check that only tells, and what it watches."""
    cuda = FakeCuda()
    cuda.check = Check(raises=False, runtime=cuda)
    return cuda.check, cuda
