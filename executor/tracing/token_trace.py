"""Marks of a decoded token that is recorded once and replayed: places for stamps of the device's clock, not events.

A step begins where the one before it ended, so each further step costs one stamp, and none where its own kernels
make it (`executor.stamps`). Each device of the token has its own stamps, which its replays write again and again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from executor.devices.base import Device, Event, StreamName
from executor.passes import EventRecord, Ubatch
from executor.stamps import AT_BEGIN, AT_END
from executor.tracing.pass_trace import Inside, PassTrace


class StampPlace(Event):
    """Where the stamp of a mark lies: on the token's device of that number, at that index."""

    __slots__ = ("index", "number")

    def __init__(self, number: int, index: int) -> None:
        self.number, self.index = number, index


class TokenTrace(PassTrace):
    """The marks of one token. With `enabled` False nothing is stamped."""

    def __init__(self, *, enabled: bool) -> None:
        super().__init__(enabled=enabled)
        self._number = -1
        self._stamps: torch.Tensor | None = None
        self._n_stamps = 0
        self._is_open = False  # whether a step has begun and not ended
        self._between: StampPlace | None = None  # where one step ended and the next may begin
        self._is_stamped = False  # whether that place has its stamp
        for offer in (AT_BEGIN, AT_END):  # of a token whose recording was interrupted
            offer.withdraw()

    @property
    def n_stamps(self) -> int:
        """How many places the present piece has so far."""
        return self._n_stamps

    def begin_piece(self, stamps: torch.Tensor) -> None:
        """What follows is recorded on the token's next device, whose `stamps` (n,) int64 take its marks."""
        self._number += 1
        self._stamps, self._n_stamps, self._between, self._is_open = stamps, 0, None, False

    def go_on(self) -> None:
        """What follows is recorded by itself, for the same device: time passes before it."""
        self._between, self._is_open = None, False

    def end_piece(self, device: Device) -> None:
        """What is recorded together ends here."""
        if self._between is not None and not self._is_stamped:
            device.stamp("compute", self._memory(self._between))

    def mark(self, device: Device, stream: StreamName, inside: Inside = "nothing") -> Event | None:
        if not self.enabled:
            return None
        self._is_open = not self._is_open
        return self._begin(device, stream, inside) if self._is_open else self._end()

    def _begin(self, device: Device, stream: StreamName, inside: Inside) -> StampPlace:
        begin, is_stamped = self._between or self._new_place(), self._between is not None and self._is_stamped
        if not is_stamped and inside == "nothing":
            device.stamp(stream, self._memory(begin))
        elif not is_stamped:
            AT_BEGIN.make(self._memory(begin))
        self._between, self._is_stamped = self._new_place(), inside == "begin and end"
        if self._is_stamped:
            AT_END.make(self._memory(self._between))
        return begin

    def _end(self) -> StampPlace:
        if AT_BEGIN.is_open() or AT_END.is_open():
            raise RuntimeError("a step whose kernels were to make its marks has launched none of them")
        assert self._between is not None
        return self._between

    def _new_place(self) -> StampPlace:
        self._n_stamps += 1
        return StampPlace(self._number, self._n_stamps - 1)

    def _memory(self, place: StampPlace) -> torch.Tensor:
        assert self._stamps is not None
        return self._stamps[place.index : place.index + 1]

    def event_records(self, ubatch: Ubatch, stamps_ns: Sequence[Sequence[int]]) -> Iterator[EventRecord]:
        """The intervals of one replay; `stamps_ns`: each device's stamps, in ns of the pass."""
        for span in self._spans:
            start, end = span.start, span.end
            assert isinstance(start, StampPlace)
            assert isinstance(end, StampPlace)
            fields: dict[str, Any] = span.fields
            yield EventRecord(
                kind=span.kind,
                name=span.name,
                t_start=stamps_ns[start.number][start.index],
                t_end=stamps_ns[end.number][end.index],
                device=span.device.index,
                stream=span.stream,
                phase=ubatch.phase,
                ubatch=ubatch.number,
                n_tokens=ubatch.n_tokens,
                **fields,
            )
