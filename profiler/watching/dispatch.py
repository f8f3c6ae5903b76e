"""Sees every operator that PyTorch dispatches, below autograd, and notes whose bytes it touches, and on which stream.

Host tensors matter only where they are pinned: what copies read of others is staged before the call comes back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from executor.passes import OrderingOp, OrderingRecord, TaggedRange
from profiler.watching.issued import Issued, StreamKey
from profiler.watching.memory import Block, Memory, NamedBytes
from profiler.watching.operators import has_storage, operator_of, tensors_in
from profiler.watching.runtime import Runtime

_HOST_READS: Final = (torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__)
_SKIPPED: Final = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


class Piece(NamedTuple):
    """Bytes of a block, as runs."""

    block: Block
    runs: list[tuple[int, int]]

    def tagged(self, tag: str = "") -> list[TaggedRange]:
        """As the records have them."""
        return [(self.block.space, start, end, tag) for start, end in self.runs]


class Watched:
    """Turns operators into records of what was issued."""

    def __init__(self, runtime: Runtime, issued: Issued) -> None:
        self.runtime, self.issued = runtime, issued
        self.memory = Memory(issued)

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Note an operator, call it, and note what it made. Its record comes first: the call may wait for it."""
        operator, inputs = operator_of(func), tensors_in((args, kwargs))
        if operator.kind == "lend":
            self.lend(args[0], self.runtime.key_of(args[1]))
        if operator.kind in ("lend", "view"):
            return self.runtime.call(func, args, kwargs)
        stream, record = self._stream_of(inputs, kwargs.get("device")), None
        read, written = operator.touched(inputs, args, kwargs)
        if operator.kind != "allocate":
            op: OrderingOp = "copy" if operator.kind == "copy" else "launch"
            self._across_devices(stream, written)
            record = self.note(stream, op, operator.name, read, written)
        out = self.runtime.call(func, args, kwargs)
        storages = {one.untyped_storage()._cdata for one in inputs if has_storage(one)}
        made = [one for one in tensors_in(out) if has_storage(one) and one.untyped_storage()._cdata not in storages]
        pieces = list(self._pieces(made, stream, made_on=stream))
        if record is not None:
            self._write(record, stream, pieces, self._pieces(read, stream) if operator.kind == "copy" else ())
        return out

    def note(
        self,
        stream: StreamKey | None,
        op: OrderingOp,
        name: str,
        read: Sequence[torch.Tensor],
        written: Sequence[torch.Tensor],
    ) -> OrderingRecord | None:
        """An operation on tensors that are there already; None where the thread does it and none of them matters."""
        reads, writes = list(self._pieces(read, stream)), list(self._pieces(written, stream))
        if stream is None and not reads and not writes:
            return None
        record = self.issued.operation(stream, op, name + caller())
        for piece in reads:
            record.reads += piece.tagged()
            _use(piece.block, stream, record, writes=False)
        self._write(record, stream, writes, reads if op == "copy" else ())
        return record

    def lend(self, tensor: torch.Tensor, stream: StreamKey) -> None:
        """The allocator is told that a stream uses the tensor's memory."""
        self.memory.block(tensor, self.runtime.address(tensor), None).lent.add(stream)

    def piece(self, tensor: torch.Tensor) -> Piece:
        """A tensor's bytes, whether or not they mattered before."""
        address = self.runtime.address(tensor)
        block = self.memory.block(tensor, address, None)
        return Piece(block, self.memory.ranges(block, tensor, address))

    def stream_of(self, tensor: torch.Tensor) -> StreamKey | None:
        """Where work on it goes; None: the issuing thread."""
        is_on_device = self.runtime.is_on_device(tensor.device)
        return self.runtime.current_stream(tensor.device) if is_on_device else None

    def _stream_of(self, inputs: Sequence[torch.Tensor], wanted: Any) -> StreamKey | None:
        """That of the last input on a device, which of a copy is its source; else of the device that is asked for."""
        devices = [one.device for one in reversed(inputs)]
        devices += [] if wanted is None else [torch.device(wanted)]
        return next((self.runtime.current_stream(one) for one in devices if self.runtime.is_on_device(one)), None)

    def _across_devices(self, stream: StreamKey | None, written: Sequence[torch.Tensor]) -> None:
        """PyTorch's copies to another device wait for that one's stream; the copy is noted before it can be seen."""
        for one in written:
            target = self.stream_of(one)
            if stream is not None and target is not None and target.device != stream.device:
                ready = object()
                self.issued.record(ready, target)
                self.issued.wait(ready, stream)
                self.issued.forget(ready)

    def _pieces(
        self, tensors: Iterable[torch.Tensor], stream: StreamKey | None, made_on: StreamKey | None = None
    ) -> Iterator[Piece]:
        """The bytes of those that matter: on a device, or pinned and seen by a copy."""
        for tensor in filter(has_storage, tensors):
            address, is_host = self.runtime.address(tensor), not self.runtime.is_on_device(tensor.device)
            block = self.memory.known(tensor, address)
            if block is None and is_host and (stream is None or not self.runtime.is_pinned(tensor)):
                continue
            block = block or self.memory.block(tensor, address, None if is_host else made_on)
            yield Piece(block, self.memory.ranges(block, tensor, address))

    def _write(
        self, record: OrderingRecord, stream: StreamKey | None, pieces: Iterable[Piece], source: Iterable[Piece]
    ) -> None:
        """Add what a record writes; a copy carries the name of its source along."""
        copied = list(source)
        for piece in pieces:
            named = _carried(copied, piece)
            for start, end in piece.runs:
                piece.block.rename(start, end, named)
            record.writes += piece.tagged(named.tag if named else "")
            _use(piece.block, stream, record, writes=True)


class DispatchWatch(TorchDispatchMode):
    """Every operator that PyTorch dispatches on this thread."""

    def __init__(self, watched: Watched) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watched = watched

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self._watched.run(func, args, kwargs or {})


class HostReadWatch(TorchFunctionMode):
    """What reads a host tensor without an operator."""

    def __init__(self, watched: Watched) -> None:
        super().__init__()
        self._watched = watched

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _HOST_READS:
            self._watched.note(None, "launch", func.__name__, [args[0]], [])
        return func(*args, **(kwargs or {}))


def caller() -> str:
    """` at train.py:30`: the nearest line that is not PyTorch's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_SKIPPED):
        frame = frame.f_back
    return f" at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _use(block: Block, stream: StreamKey | None, record: OrderingRecord, *, writes: bool) -> None:
    if stream is not None:
        block.used_by(stream, record, writes=writes)


def _carried(source: Sequence[Piece], target: Piece) -> NamedBytes | None:
    """The name that a copy of one run of bytes brings with it."""
    if len(source) != 1 or len(source[0].runs) != 1 or len(target.runs) != 1:
        return None
    [(start, end)], [(into, into_end)] = source[0].runs, target.runs
    named = source[0].block.name_of(start, end)
    if named is None or end - start != into_end - into:
        return None
    return NamedBytes(into, into_end, named.name, into - (start - named.origin))
