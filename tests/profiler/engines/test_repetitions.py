"""Which work of a recorded llama-bench is of which repetition: decided by gaps, or not at all."""

from __future__ import annotations

import numpy as np
import pytest

from profiler.arithmetic.intervals import Intervals, union
from profiler.engines.repetitions import ProgressLines, repetition_starts

MS, US = 1_000_000, 1_000


def busy(*work: tuple[int, int]) -> Intervals:
    starts, ends = (np.array(edge, np.int64) for edge in zip(*work, strict=True))
    return union(starts, ends)


def kernels(start: int, end: int, *, pause: int = 2 * US) -> list[tuple[int, int]]:
    """Kernels of 20 us with a short pause between two, from `start` to `end`."""
    return [(at, min(at + 20 * US, end)) for at in range(start, end, 20 * US + pause)]


# loading, a warm-up and three repetitions, each with half a millisecond of the host's work ahead of it
LENGTH = 50 * MS
STARTS = [200 * MS, 250 * MS + 100 * US, 300 * MS + 200 * US]
WORK = busy(
    *kernels(0, 40 * MS),
    *kernels(150 * MS, 199 * MS),
    *[one for start in STARTS for one in kernels(start + 500 * US, start + LENGTH - 20 * US)],
)


@pytest.mark.parametrize("late", [0, 20 * US, 3 * MS])
def test_repetitions_lie_between_gaps_however_late_their_lines_were_read(late: int) -> None:
    found = repetition_starts([start + late for start in STARTS], [LENGTH] * 3, WORK)
    assert found is not None
    for begin, start in zip(found, STARTS, strict=True):
        inside = (WORK.starts >= begin) & (WORK.ends <= begin + LENGTH)
        expected = (WORK.starts >= start) & (WORK.ends <= start + LENGTH)
        assert (inside == expected).all(), "the same work"


def test_lines_that_say_another_length_than_the_gaps_decide_nothing() -> None:
    assert repetition_starts(STARTS, [LENGTH - 20 * MS] * 3, WORK) is None


def test_two_gaps_that_would_do_decide_nothing() -> None:
    """Work that comes and goes every 2 ms: each gap leads to another one a whole number of them later."""
    alike = busy(*[(at * 2 * MS, at * 2 * MS + 1900 * US) for at in range(200)])
    assert repetition_starts([101 * 2 * MS - 10 * US], [20 * MS], alike) is None


def test_no_gap_decides_nothing() -> None:
    assert repetition_starts([100 * MS], [50 * MS], busy((0, 1000 * MS))) is None


def test_lines_are_noted_when_they_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10, 20, 30])
    monkeypatch.setattr("profiler.engines.repetitions.time.time_ns", lambda: next(clock))
    lines = ProgressLines()
    for piece in (
        b"llama-bench: benchmark 1/2: warmup prompt run\nllama-bench: benchmark 1/2: prompt r",
        b"un 1/2\nllama-bench: benchmark 1/2: depth run 2/2\n",
        b"llama-bench: benchmark 1/2: prompt run 2/2\nllama-bench: benchmark 1/2: generation run 2/2\n",
    ):
        lines(piece)
    assert lines.told_ns == {(1, 1): 20, (1, 2): 30}
