"""Marks of a token that is recorded: which of them kernels make, which are stamped, and what a replay's rows are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executor.passes import Ubatch
from executor.stamps import AT_BEGIN, AT_END
from executor.tracing.token_trace import TokenTrace

UBATCH = Ubatch(3, "decode", 1, 40, 1)
GPU = torch.device("cuda", 0)


class Stamping:
    """A device that keeps where it was asked to stamp."""

    index = 0

    def __init__(self) -> None:
        self.stamped: list[int] = []

    def stamp(self, stream: str, into: torch.Tensor) -> None:
        self.stamped.append(int(into.storage_offset()))

    def label(self, *where: object) -> None:
        """Nobody asks."""


def steps(trace: TokenTrace, device: Any, *insides: Any) -> list[int | None]:
    """One step for each of `insides`, whose kernels take what they are offered; the places that they took."""
    taken: list[int | None] = []
    trace.begin_piece(torch.zeros(16, dtype=torch.int64))
    for inside in insides:
        start = trace.mark(device, "compute", inside)
        for offer in (AT_BEGIN, AT_END):
            if offer.is_open():
                place = offer.take(GPU)
                taken.append(None if place is None else int(place.storage_offset()))
        trace.add(device, "compute", "compute", inside, UBATCH, start, trace.mark(device, "compute"), layer=1)
    trace.end_piece(device)
    return taken


def test_steps_without_kernels_of_their_own_are_stamped_where_they_meet() -> None:
    device, trace = Stamping(), TokenTrace(enabled=True)
    assert steps(trace, device, "nothing", "nothing", "nothing") == []
    assert device.stamped == [0, 1, 2, 3]


def test_kernels_make_marks_that_are_then_not_stamped() -> None:
    device, trace = Stamping(), TokenTrace(enabled=True)
    assert steps(trace, device, "begin", "begin and end", "nothing", "begin") == [0, 1, 2, 3]
    assert device.stamped == [4]
    assert trace.n_stamps == 5


def test_a_replay_gives_rows_of_steps_that_follow_each_other() -> None:
    trace = TokenTrace(enabled=True)
    steps(trace, Stamping(), "begin", "nothing")
    rows = list(trace.event_records(UBATCH, [[100, 250, 300]]))
    assert [(row.t_start, row.t_end, row.ubatch, row.layer) for row in rows] == [(100, 250, 3, 1), (250, 300, 3, 1)]


def test_a_mark_that_no_kernel_made_is_noticed() -> None:
    trace, device = TokenTrace(enabled=True), Stamping()
    trace.begin_piece(torch.zeros(4, dtype=torch.int64))
    trace.mark(device, "compute", "begin")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="launched none of them"):
        trace.mark(device, "compute")  # type: ignore[arg-type]
    AT_BEGIN.take(GPU)


def test_nothing_is_stamped_without_records() -> None:
    device, trace = Stamping(), TokenTrace(enabled=False)
    assert steps(trace, device, "begin", "nothing") == []
    assert device.stamped == []
    assert list(trace.event_records(UBATCH, [[]])) == []


def test_an_interrupted_recording_leaves_no_offer() -> None:
    """Whose last kernel was never launched; the next token's steps make their own marks."""
    device, interrupted = Stamping(), TokenTrace(enabled=True)
    interrupted.begin_piece(torch.zeros(16, dtype=torch.int64))
    interrupted.mark(device, "compute", "begin and end")  # type: ignore[arg-type]
    assert AT_END.is_open()
    assert steps(TokenTrace(enabled=True), device, "begin", "begin") == [0, 1]
