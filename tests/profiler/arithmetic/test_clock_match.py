"""The offset between two clocks is found to a microsecond or so, from the intervals that a thing can lie in alone."""

from __future__ import annotations

import numpy as np
import pytest

from executor.arrays import Int64
from profiler.arithmetic.clock_match import WINDOW_NS, ClockMatch, WorkIntervals, match_clocks

TRUE_NS = -5_124_626_046_000_123
NO_BYTES = np.empty(0, np.int64)


def spans(start: Int64, length: Int64, n_bytes: Int64 | None = None) -> WorkIntervals:
    return WorkIntervals(start, start + length, np.zeros(len(start), np.int64) if n_bytes is None else n_bytes)


def marked_steps(rng: np.random.Generator, n: int, mean_ns: float) -> WorkIntervals:
    """Steps one after the other on one stream, with a small gap between."""
    length = (mean_ns * rng.uniform(0.5, 1.5, n)).astype(np.int64)
    gap = rng.integers(1_000, 4_000, n)
    start = np.cumsum(length + gap) - length
    return spans(start, length)


def seen_inside(marked: WorkIntervals, rng: np.random.Generator, each: int) -> WorkIntervals:
    """`each` pieces of work inside each mark, 1 to 2 us from its edges, on the other clock, with 200 ns of jitter.

    A single piece fills the mark, as a copy does; several leave a tenth between them.
    """
    margin = np.minimum(rng.integers(1_000, 2_000, len(marked)), (marked.end - marked.start) // 4)
    step = (marked.end - marked.start - 2 * margin) // each
    start = (marked.start + margin)[:, None] + step[:, None] * np.arange(each)
    jitter = rng.integers(-200, 200, start.shape)
    return spans(
        (start + jitter).ravel() - TRUE_NS,
        np.repeat(step if each == 1 else step * 9 // 10, each),
        np.repeat(marked.n_bytes, each),
    )


def error_ns(match: ClockMatch | None) -> int:
    assert match is not None
    return abs(match.offset_ns - TRUE_NS)


@pytest.mark.parametrize("guess_error_ns", [-4_000_000, -30_000, 0, 250_000, 4_000_000])
def test_alike_copies_at_equal_distances(guess_error_ns: int) -> None:
    """A neighbour fits as well as the right one, but then the first or last copy fits nowhere."""
    copies = spans(np.arange(40) * 400_000, np.full(40, 300_000), np.full(40, 16 << 20))
    seen = seen_inside(copies, np.random.default_rng(1), 1)
    match = match_clocks([(copies, seen)], TRUE_NS + guess_error_ns)
    assert error_ns(match) < 3_000
    assert match is not None
    assert match.share == 1.0


@pytest.mark.parametrize(("n_steps", "mean_ns", "each"), [(30, 90_000, 25), (2_000, 60_000, 12), (400, 12_000, 3)])
def test_kernels_alone(n_steps: int, mean_ns: float, each: int) -> None:
    """A pass that streams nothing has no copies to go by."""
    rng = np.random.default_rng(n_steps)
    steps = marked_steps(rng, n_steps, mean_ns)
    match = match_clocks([(steps, seen_inside(steps, rng, each))], TRUE_NS + 700_000)
    assert error_ns(match) < 3_000
    assert match is not None
    assert match.share > 0.95


def test_the_same_decode_step_over_and_over() -> None:
    rng = np.random.default_rng(3)
    once = marked_steps(rng, 9, 40_000)
    starts = (np.arange(60)[:, None] * 500_000 + once.start).ravel()
    steps = spans(starts, np.tile(once.end - once.start, 60))
    match = match_clocks([(steps, seen_inside(steps, rng, 8))], TRUE_NS - 900_000)
    assert error_ns(match) < 3_000


def test_a_copy_in_pieces_and_work_that_was_never_marked() -> None:
    """Selective copies move runs of experts, each seen alone; other streams' work lies anywhere."""
    rng = np.random.default_rng(4)
    copies = spans(np.cumsum(rng.integers(300_000, 500_000, 60)), rng.integers(50_000, 250_000, 60))
    copies = WorkIntervals(copies.start, copies.end, (copies.end - copies.start) * 50)
    pieces = seen_inside(copies, rng, 6)
    pieces = WorkIntervals(pieces.start, pieces.end, pieces.n_bytes // 6)
    noise = spans(rng.integers(0, int(copies.end.max()), 80) - TRUE_NS, np.full(80, 3_000), np.full(80, 512))
    both = WorkIntervals(
        *(np.concatenate([getattr(pieces, n), getattr(noise, n)]) for n in ("start", "end", "n_bytes"))
    )
    match = match_clocks([(copies, both)], TRUE_NS + 100_000)
    assert error_ns(match) < 3_000


def test_a_copy_of_more_bytes_than_were_marked_is_another() -> None:
    copies = spans(np.array([0]), np.array([100_000]), np.array([1_000]))
    seen = spans(np.array([1_000 - TRUE_NS]), np.array([98_000]), np.array([2_000]))
    assert match_clocks([(copies, seen)], TRUE_NS) is None


def test_what_lies_outside_the_window_is_no_match() -> None:
    copies = spans(np.array([0, 10**9]), np.full(2, 100_000))
    seen = spans(copies.start - TRUE_NS, np.full(2, 98_000))
    assert match_clocks([(copies, seen)], TRUE_NS + 2 * WINDOW_NS) is None
    assert match_clocks([(spans(NO_BYTES, NO_BYTES), seen)], TRUE_NS) is None
    assert match_clocks([(copies, spans(NO_BYTES, NO_BYTES))], TRUE_NS) is None
    assert match_clocks([], 0) is None


def test_the_share_tells_a_chance_match() -> None:
    rng = np.random.default_rng(5)
    steps = marked_steps(rng, 200, 30_000)
    unrelated = spans(rng.integers(0, int(steps.end.max()), 900) - TRUE_NS, rng.integers(1_000, 60_000, 900))
    match = match_clocks([(steps, unrelated)], TRUE_NS)
    assert match is not None
    assert match.share < 0.5
