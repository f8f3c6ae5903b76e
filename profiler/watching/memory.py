"""Whose bytes a tensor's are: storages as blocks, from when they are first seen until they are freed.

A block is a space of its own, so that memory which the caching allocator hands on is not taken for what it was before.
Handing it on is checked apart, when it happens:

* a block that is freed while a stream other than its own has used it, without `record_stream` and without its own
  stream waiting for that use: the allocator may give it away at once;
* memory that was given away, written first on another stream than the one that it was allocated on: that stream orders
  the old use before the new one, the other does not.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Final, NamedTuple

import torch

from executor.passes import OrderingRecord
from profiler.watching.issued import Issued, StreamKey

MOST_RUNS: Final = 256
"""Of a tensor with more, the first are looked at: what lies between runs is not its own, and must not look like it."""


class FreedRange(NamedTuple):
    """Bytes `address` to `end`; `last` is what used them last on the stream that they were allocated on."""

    address: int
    end: int
    stream: StreamKey
    last: OrderingRecord


class FreedRanges:
    """Freed ranges of a device, none over another: what is freed later was given away before."""

    def __init__(self) -> None:
        self._addresses: list[int] = []
        self._ranges: list[FreedRange] = []

    def add(self, freed: FreedRange) -> None:
        """Remember a range."""
        self.take(freed.address, freed.end)
        at = bisect_left(self._addresses, freed.address)
        self._addresses.insert(at, freed.address)
        self._ranges.insert(at, freed)

    def take(self, address: int, end: int) -> list[FreedRange]:
        """All that overlaps with these bytes, which are in use again."""
        first = bisect_left(self._addresses, address)
        if first and self._ranges[first - 1].end > address:
            first -= 1
        last = bisect_left(self._addresses, end)
        taken = self._ranges[first:last]
        del self._addresses[first:last], self._ranges[first:last]
        return taken


class NamedBytes(NamedTuple):
    """Bytes of a block whose content has a name; the name's first byte would lie at `origin`."""

    start: int
    end: int
    name: str
    origin: int

    @property
    def tag(self) -> str:
        """As the executor writes it: two ranges have the same tag only where every byte is the same."""
        return f"{self.name}@{self.origin}"


@dataclass(slots=True)
class Block:
    """The bytes of a storage; several storages may be views of the same memory."""

    number: int
    device: torch.device
    address: int
    n_bytes: int
    stream: StreamKey | None
    """Which it was allocated on; None: on the host, or before watching began."""
    n_holders: int = 0
    names: list[NamedBytes] = field(default_factory=list)
    last: dict[StreamKey, OrderingRecord] = field(default_factory=dict)
    """Each stream's last operation on it."""
    lent: set[StreamKey] = field(default_factory=set)
    """Streams that the allocator was told of (`record_stream`)."""
    before: list[OrderingRecord] = field(default_factory=list)
    """The last operations, on the stream that it was allocated on, of what had the memory before."""

    @property
    def space(self) -> str:
        """The name of its address space, which no other block has."""
        return f"{self.device} tensor {self.number}"

    def used_by(self, stream: StreamKey, record: OrderingRecord, *, writes: bool) -> None:
        """Note an operation of a stream on it."""
        if writes and self.before and stream not in (self.stream, *self.last):
            handed_on = (f"{self.space}, which another tensor had before", 0, self.n_bytes, "")
            for one in self.before:
                if handed_on not in one.reads:
                    one.reads.append(handed_on)
            record.writes.append(handed_on)
        self.last[stream] = record

    def name_of(self, start: int, end: int) -> NamedBytes | None:
        """The name that covers a range; None where none does."""
        return next((one for one in self.names if one.start <= start and end <= one.end), None)

    def rename(self, start: int, end: int, named: NamedBytes | None) -> None:
        """The range has other content from now on; None: of no name."""
        self.names = [one for one in self.names if one.end <= start or end <= one.start]
        if named is not None:
            self.names.append(named)


class Memory:
    """All blocks that live, found by storage and by address."""

    def __init__(self, issued: Issued) -> None:
        self._issued = issued
        self._of_storage: dict[int, Block] = {}
        self._by_address: dict[torch.device, list[tuple[int, int]]] = {}  # sorted (address, number of the block)
        self._blocks: dict[int, Block] = {}
        self._freed: dict[torch.device, FreedRanges] = {}
        self._n_blocks = 0
        self._is_over = False

    def close(self) -> None:
        """What is freed from now on is no operation any more."""
        self._is_over = True

    def known(self, tensor: torch.Tensor, address: int) -> Block | None:
        """The block of a tensor's storage, which lies at `address`, where it was seen before."""
        storage = tensor.untyped_storage()
        block = self._of_storage.get(storage._cdata)
        if (
            block is not None
            and (block.address, block.n_bytes) != (address, storage.nbytes())
            and (not block.address <= address <= address + storage.nbytes() <= block.address + block.n_bytes)
        ):
            self._let_go(storage._cdata)  # it was resized: other memory
            block = None
        return block or self._share(storage, tensor.device, address)

    def block(self, tensor: torch.Tensor, address: int, stream: StreamKey | None) -> Block:
        """The block of a tensor's storage; `stream`: that it was allocated on, if it is new (None: not known)."""
        known = self.known(tensor, address)
        if known is not None:
            return known
        storage = tensor.untyped_storage()
        self._n_blocks += 1
        block = Block(self._n_blocks, tensor.device, address, storage.nbytes(), stream)
        if stream is not None:
            before = self._freed_on(tensor.device).take(address, address + block.n_bytes)
            block.before = [one.last for one in before if one.stream == stream]
        self._blocks[self._n_blocks] = block
        insort(self._by_address.setdefault(tensor.device, []), (address, self._n_blocks))
        self._hold(storage, block)
        return block

    def ranges(self, block: Block, tensor: torch.Tensor, address: int) -> list[tuple[int, int]]:
        """The bytes of the block that the tensor has."""
        shift = address - block.address
        return [(start + shift, end + shift) for start, end in byte_runs(tensor)]

    def _share(self, storage: torch.UntypedStorage, device: torch.device, address: int) -> Block | None:
        """The block whose memory this storage is a part of."""
        places = self._by_address.get(device, [])
        at = bisect_right(places, (address, self._n_blocks + 1)) - 1
        if at < 0 or not address:
            return None
        block = self._blocks[places[at][1]]
        if not address + storage.nbytes() <= block.address + block.n_bytes:
            return None
        self._hold(storage, block)
        return block

    def _hold(self, storage: torch.UntypedStorage, block: Block) -> None:
        block.n_holders += 1
        self._of_storage[storage._cdata] = block
        weakref.finalize(storage, _let_go_of, weakref.ref(self), storage._cdata).atexit = False

    def _let_go(self, cdata: int) -> None:
        block = self._of_storage.pop(cdata, None)
        if block is None or self._is_over:
            return
        block.n_holders -= 1
        if block.n_holders:
            return
        places = self._by_address[block.device]
        del places[bisect_left(places, (block.address, block.number))]
        del self._blocks[block.number]
        if block.stream is not None:
            self._free(block, block.stream)

    def _free(self, block: Block, stream: StreamKey) -> None:
        untold = [one for other, one in block.last.items() if other != stream and other not in block.lent]
        if untold:
            whole = (f"{block.space}, once it is freed", 0, block.n_bytes, "")
            for one in untold:
                one.reads.append(whole)
            self._issued.operation(stream, "free", "free, for the allocator to hand on", writes=[whole])
        if stream in block.last and block.address:
            freed = FreedRange(block.address, block.address + block.n_bytes, stream, block.last[stream])
            self._freed_on(block.device).add(freed)

    def _freed_on(self, device: torch.device) -> FreedRanges:
        return self._freed.setdefault(device, FreedRanges())


def _let_go_of(memory: weakref.ref[Memory], cdata: int) -> None:
    """A storage is gone. Those that outlive the watch, as a model's weights do, must not keep it alive."""
    if (watching := memory()) is not None:
        watching._let_go(cdata)


def byte_runs(tensor: torch.Tensor) -> Iterator[tuple[int, int]]:
    """Which bytes of its storage a strided tensor has: (from, to) runs in the tensor's storage, at most MOST_RUNS."""
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    if tensor.numel() == 0:
        return
    if tensor.is_contiguous():
        yield first, first + tensor.numel() * size
        return
    # innermost first; a stride of 0 shows the same bytes again
    axes = sorted((stride, n) for stride, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1 and stride)
    run = 1
    outer: list[tuple[int, int]] = []
    for stride, n in axes:
        if stride == run and not outer:
            run *= n
        else:
            outer.append((stride, n))
    for count, places in enumerate(product(*(range(n) for _, n in reversed(outer)))):
        if count == MOST_RUNS:
            return
        at = sum(place * stride for place, (stride, _) in zip(places, reversed(outer), strict=True))
        yield first + at * size, first + (at + run) * size
