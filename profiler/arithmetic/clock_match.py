"""One clock matched with another by work that both saw: kernels and copies as CUPTI timed them, and hprof's marks.

hprof marks each copy and step by two events of its stream: what CUPTI saw of it lies between the marks. Each
piece of work that CUPTI saw therefore allows an interval of offsets for each marked interval that it could lie
in, and the right offset is where the most of these intervals overlap: it puts the most work inside its marks. A
copy, which fills its marks, allows few microseconds; a wrong neighbour of a copy or step fits a few pieces, not
all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from executor.arrays import Int64

WINDOW_NS: Final = 5_000_000  # the system's clock, by which both are known, may be this far off for one of them
_SLACK_NS: Final = 1_000  # the two ways to take a time on the device differ by less
_MOST_VOTES: Final = 2_000  # of one kind of work; more do not change the offset


@dataclass(frozen=True, slots=True)
class WorkIntervals:
    """Work of one kind on one device, in parallel arrays: ns on some clock, and bytes (0 where that says nothing)."""

    start: Int64
    end: Int64
    n_bytes: Int64

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: Int64) -> WorkIntervals:
        """Only these rows, in this order."""
        return WorkIntervals(self.start[rows], self.end[rows], self.n_bytes[rows])


@dataclass(frozen=True, slots=True)
class ClockMatch:
    """`offset_ns` is added to the seen times; `share` is how much of the seen work then lies inside its marks."""

    offset_ns: int
    share: float


def match_clocks(pairs: list[tuple[WorkIntervals, WorkIntervals]], guess_ns: int) -> ClockMatch | None:
    """The offset from the clock of seen work to that of marked work; None where there is nothing to go by.

    pairs: (marked, seen) of each kind of work, times below MAX_ABS_NS. guess_ns: the offset to within WINDOW_NS.
    """
    allowed = [_allowed(marked, seen, guess_ns) for marked, seen in pairs]
    lows, highs = (np.concatenate([np.empty(0, np.int64), *(pair[i] for pair in allowed)]) for i in range(2))
    n_seen = sum(n for _, _, n in allowed)
    if len(lows) == 0:
        return None
    offset_ns, n_inside = _densest(lows, highs, guess_ns)
    return ClockMatch(offset_ns, min(1.0, n_inside / n_seen))


def _allowed(marked: WorkIntervals, seen: WorkIntervals, guess_ns: int) -> tuple[Int64, Int64, int]:
    """Lowest and highest offset at which a piece of work lies in a marked interval, for all pairs in the window."""
    seen = _near(marked, seen, guess_ns)
    marked = marked.take(np.argsort(marked.start, kind="stable"))
    first = np.searchsorted(np.maximum.accumulate(marked.end), seen.start + (guess_ns - WINDOW_NS))
    last = np.searchsorted(marked.start, seen.end + (guess_ns + WINDOW_NS))
    n_pairs = np.maximum(last - first, 0)
    piece = np.repeat(np.arange(len(seen)), n_pairs)
    mark = np.arange(len(piece)) - np.repeat(np.cumsum(n_pairs) - n_pairs, n_pairs) + np.repeat(first, n_pairs)
    low = np.maximum(marked.start[mark] - seen.start[piece] - _SLACK_NS, guess_ns - WINDOW_NS)
    high = np.minimum(marked.end[mark] - seen.end[piece] + _SLACK_NS, guess_ns + WINDOW_NS)
    fits = (low <= high) & (seen.n_bytes[piece] <= marked.n_bytes[mark])
    return low[fits], high[fits], len(seen)


def _near(marked: WorkIntervals, seen: WorkIntervals, guess_ns: int) -> WorkIntervals:
    """Seen work that may be of the marked stretch of time, thinned out evenly to _MOST_VOTES."""
    if len(marked) == 0:
        return seen.take(np.empty(0, np.int64))
    from_ns, to_ns = int(marked.start.min()) - WINDOW_NS, int(marked.end.max()) + WINDOW_NS
    near = np.flatnonzero((seen.end + guess_ns >= from_ns) & (seen.start + guess_ns <= to_ns))
    if len(near) > _MOST_VOTES:
        near = near[np.linspace(0, len(near) - 1, _MOST_VOTES).astype(np.int64)]
    return seen.take(near)


def _densest(lows: Int64, highs: Int64, guess_ns: int) -> tuple[int, int]:
    """The middle of the stretch that the most intervals [low, high] cover (the nearest to the guess), and how many."""
    points = np.concatenate([lows, highs])
    steps = np.repeat([1, -1], len(lows))
    order = np.lexsort((-steps, points))  # an interval that ends where another begins still overlaps it
    points, covering = points[order], np.cumsum(steps[order])
    best = np.flatnonzero(covering == covering.max())
    middles = (points[best] + points[best + 1]) // 2
    nearest = int(np.argmin(np.abs(middles - guess_ns)))
    return int(middles[nearest]), int(covering.max())
