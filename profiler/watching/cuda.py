"""torch.cuda as what is watched: PyTorch's own trace of streams and events, as its CUDA sanitizer uses it.

The trace tells what C++ code asks for too. It does not tell of `query`, which shows the thread that something is over:
that is patched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.cuda._gpu_trace as gpu_trace

from profiler.watching.issued import Issued, StreamKey


class CudaRuntime:
    """All devices of torch.cuda."""

    def is_on_device(self, device: torch.device) -> bool:
        return device.type == "cuda"

    def current_stream(self, device: torch.device) -> StreamKey:
        return self.key_of(torch.cuda.current_stream(device))

    def key_of(self, stream: Any) -> StreamKey:
        if not isinstance(stream, torch.cuda.Stream):  # as operators get it
            stream = torch.cuda.Stream(
                stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
            )
        key = StreamKey(stream.device_index, stream.cuda_stream)
        _TRACE.streams[key.handle] = key
        return key

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def address(self, tensor: torch.Tensor) -> int:
        return tensor.untyped_storage().data_ptr()

    def call(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return func(*args, **kwargs)

    @contextmanager
    def listening(self, issued: Issued) -> Iterator[None]:
        _TRACE.begin()
        for device in range(torch.cuda.device_count()):
            self.key_of(torch.cuda.current_stream(device))
        asked = [(kind, kind.query) for kind in (torch.cuda.Event, torch.cuda.Stream)]
        before, _TRACE.issued = _TRACE.issued, issued
        try:
            for kind, query in asked:
                setattr(kind, "query", _telling(query))  # noqa: B010 - mypy takes methods for constant
            yield
        finally:
            for kind, query in asked:
                setattr(kind, "query", query)  # noqa: B010
            _TRACE.issued = before


class _Trace:
    """Passes PyTorch's trace on to what listens. PyTorch keeps callbacks for good, so there is one set of them."""

    def __init__(self) -> None:
        self.issued: Issued | None = None
        self.streams: dict[int, StreamKey] = {}
        self._has_begun = False

    def begin(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        torch._C._activate_gpu_trace()
        gpu_trace.register_callback_for_event_creation(self._forget)
        gpu_trace.register_callback_for_event_deletion(self._forget)
        gpu_trace.register_callback_for_event_record(self._record)
        gpu_trace.register_callback_for_event_wait(self._wait)
        gpu_trace.register_callback_for_event_synchronization(self.sync_event)
        gpu_trace.register_callback_for_stream_synchronization(self.sync_stream)
        gpu_trace.register_callback_for_device_synchronization(self._sync_device)

    def sync_event(self, event: int) -> None:
        if self.issued is not None:
            self.issued.sync_event(event)

    def sync_stream(self, handle: int) -> None:
        if self.issued is not None:
            self.issued.sync_stream(self._stream(handle))

    def _forget(self, event: int) -> None:
        if self.issued is not None:
            self.issued.forget(event)

    def _record(self, event: int, handle: int) -> None:
        if self.issued is not None:
            self.issued.record(event, self._stream(handle))

    def _wait(self, event: int, handle: int) -> None:
        if self.issued is not None:
            self.issued.wait(event, self._stream(handle))

    def _sync_device(self) -> None:
        if self.issued is not None:
            self.issued.sync_device(torch.cuda.current_device())

    def _stream(self, handle: int) -> StreamKey:
        """Default streams have the handle 0 on every device: the call is made on its own."""
        known = self.streams.get(handle) if handle else None
        return known or StreamKey(torch.cuda.current_device(), handle)


_TRACE: Final = _Trace()


def _telling(query: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """`query` that tells the trace when the answer is that all is over."""

    def told(asked: Any) -> bool:
        is_over = query(asked)
        if is_over and isinstance(asked, torch.cuda.Stream):
            _TRACE.sync_stream(asked.cuda_stream)
        elif is_over:
            _TRACE.sync_event(asked.cuda_event)
        return is_over

    return told
