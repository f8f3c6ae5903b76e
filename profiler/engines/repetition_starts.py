"""When the repetitions of a recorded llama-bench began: between gaps of its devices' work, decided or not at all.

Before a repetition's first work and after its last, devices are idle. So it begins in a gap that lies shortly before
its line was read, and that leads to another gap after its length. Tokens and layers leave such gaps too, all alike; but
repetitions follow each other at once, and most lines are read at once. What is likely is what needs the fewest
exceptions from that, and it is an answer where all that need as few give each repetition the same work.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from executor.arrays import Int64
from profiler.arithmetic.intervals import Intervals, covered_length

_LATE_NS: Final = 5_000_000  # from a line's printing to its reading, at the most
_AT_ONCE_NS: Final = 1_000_000  # and usually: a thread that waits for it wakes much sooner
_SOONEST_NS: Final = 200_000  # and of several the soonest, behind the gap in which its repetition begins
_NEXT_NS: Final = 400_000  # from a repetition's end to the next one's beginning, usually: an empty cache, a line
_LATE, _PAUSE = 1, 3  # what an exception counts: threads wake late more often than the program stops just there
_ENOUGH: Final = 3  # lines, to speak of what is usual
_LEAST_GAP_NS: Final = 30_000  # the host clears the cache and builds a graph there; between two kernels it is less
_NO_WORK: Final = 1e-3  # of a repetition's busy time: what answers may differ by, such as an input of some bytes
_MOST_PLACES: Final = 500  # of one repetition: with more, nothing is certain
_FAR: Final = int(np.iinfo(np.int64).max // 4)
_Counts = npt.NDArray[np.float64]


class Told(NamedTuple):
    """What llama-bench said of a repetition."""

    at_ns: int  # when its line was read
    length_ns: int
    is_next: bool  # it follows the one before at once


class _Instants(NamedTuple):
    """Instants, from `low` to `high`, at which a repetition may begin: all in one gap, and so are their ends."""

    low: int
    high: int


def repetition_starts(told: Sequence[Told], busy: Intervals) -> list[int] | None:
    """When each repetition began; None where another answer is as likely, or there is none.

    busy: of all devices of the process.
    """
    gaps = _gaps(busy)
    places = [_places(one, gaps) for one in told]
    if not all(0 < len(some) <= _MOST_PLACES for some in places):
        return None
    starts = _one_answer(told, _likeliest(told, places, by_what_is_usual=False), busy)
    if starts is not None or len(told) < _ENOUGH:
        return starts
    likely = _likeliest(told, places, by_what_is_usual=True)
    return _one_answer(told, likely, busy) if _is_one_soon(told, likely) else None


def _one_answer(told: Sequence[Told], places: Sequence[Sequence[_Instants]], busy: Intervals) -> list[int] | None:
    """The latest start of each repetition, where its earliest gives it the same work; else, or without places, None."""
    if not all(places):
        return None
    early = [min(one.low for one in some) for some in places]
    late = [max(one.high for one in some) for some in places]
    for at in range(len(late) - 2, -1, -1):
        late[at] = min(late[at], late[at + 1] - told[at].length_ns)
    bounds = zip(early, late, told, strict=True)
    return late if all(_are_alike(first, last, one.length_ns, busy) for first, last, one in bounds) else None


def _likeliest(
    told: Sequence[Told], places: Sequence[Sequence[_Instants]], *, by_what_is_usual: bool
) -> list[list[_Instants]]:
    """The places of each repetition that are part of an answer, one with the fewest exceptions if that counts."""
    n = len(told)
    own = [
        np.array([_LATE if by_what_is_usual and one.at_ns - high > _AT_ONCE_NS else 0 for _, high in some], np.float64)
        for one, some in zip(told, places, strict=True)
    ]
    steps = [
        _steps(some, more, first.length_ns, second.is_next and by_what_is_usual)
        for (first, second), (some, more) in zip(pairwise(told), pairwise(places), strict=True)
    ]
    until, after = [own[0]], [np.zeros(len(own[-1]))]  # exceptions up to a place, and behind it
    for at in range(1, n):
        until.append((until[-1][:, None] + steps[at - 1]).min(axis=0) + own[at])
    for at in range(n - 2, -1, -1):
        after.insert(0, (steps[at] + own[at + 1] + after[0]).min(axis=1))
    totals = [before + behind for before, behind in zip(until, after, strict=True)]
    fewest = min(float(total.min()) for total in totals)
    if not np.isfinite(fewest):
        return [[] for _ in places]
    return [
        [one for one, count in zip(some, total, strict=True) if count == fewest]
        for some, total in zip(places, totals, strict=True)
    ]


def _is_one_soon(told: Sequence[Told], places: Sequence[Sequence[_Instants]]) -> bool:
    """Whether some line was read as soon as one of several is."""
    return any(one.at_ns - high <= _SOONEST_NS for one, some in zip(told, places, strict=True) for _, high in some)


def _steps(before: Sequence[_Instants], after: Sequence[_Instants], length: int, is_next: bool) -> _Counts:
    """(places of one repetition, places of the next): the exceptions between them, infinite where they overlap."""
    low, high = (
        np.array([getattr(one, edge) for one in before], np.int64)[:, None] + length for edge in _Instants._fields
    )
    next_low, next_high = (
        np.array([getattr(one, edge) for one in after], np.int64)[None, :] for edge in _Instants._fields
    )
    pause = np.where(is_next & (next_low - high > _NEXT_NS), float(_PAUSE), 0.0)
    return np.where(next_high < low, np.inf, pause)


def _places(told: Told, gaps: tuple[Int64, Int64]) -> list[_Instants]:
    """Where a repetition may begin."""
    begin, end = gaps
    at, length = told.at_ns, told.length_ns
    starts = np.flatnonzero((begin <= at) & (end >= at - _LATE_NS))
    low, high = np.maximum(begin[starts], at - _LATE_NS), np.minimum(end[starts], at)
    return [
        _Instants(max(bottom, int(begin[after]) - length), min(top, int(end[after]) - length))
        for bottom, top in zip(low.tolist(), high.tolist(), strict=True)
        for after in np.flatnonzero((begin <= top + length) & (end >= bottom + length)).tolist()
    ]


def _are_alike(early: int, late: int, length: int, busy: Intervals) -> bool:
    """Whether a repetition that begins at either instant has the same work, but for next to nothing."""
    edges = np.array([early, early + length, early], np.int64), np.array([late, late + length, late + length], np.int64)
    at_start, at_end, whole = covered_length(busy, *edges).tolist()
    return bool(at_start + at_end <= _NO_WORK * whole)


def _gaps(busy: Intervals) -> tuple[Int64, Int64]:
    """Beginnings and ends of what is long enough between the work, before its first and after its last."""
    begin, end = np.append(-_FAR, busy.ends), np.append(busy.starts, _FAR)
    is_long = end - begin >= _LEAST_GAP_NS
    return begin[is_long], end[is_long]
