"""The two checks, each over pairs of operations that touch the same bytes.

Ranges are cut where any of them begins or ends. Of each piece, every access is held against the last write issued
before it, and every read against the next write: where all of these are ordered, so is everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from executor.arrays import Flags, Int64
from executor.errors import HprofError
from profiler.ordering.clocks import HappensBefore
from profiler.ordering.operations import NO_TAG, Touches

NOTHING: Final = -1
MOST_PIECES: Final = 1 << 23
"""Of some 180 bytes each. Runs have two for three operations; ranges that all overlap, the square of their number."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows of operations, and one row of `Touches` of each; `first` is NOTHING where nothing was written."""

    first: Int64
    second: Int64
    first_touch: Int64
    second_touch: Int64


@dataclass(frozen=True, slots=True)
class CheckedPairs:
    """What was held together, and what failed, a pair of operations once."""

    n_pairs: int
    n_expectations: int
    races: Pairs
    wrong: Pairs
    """Reads whose last write is in order and carries another tag than the reader relies on."""


def check_pairs(order: HappensBefore) -> CheckedPairs:
    """Run both checks. Raises HprofError for ranges that no run has."""
    touches = order.ops.touches
    touch, piece = _pieces(touches)
    op, is_write = touches.op[touch], touches.is_write[touch]
    sorted_by = np.lexsort((is_write, op, piece))
    touch, piece, op, is_write = touch[sorted_by], piece[sorted_by], op[sorted_by], is_write[sorted_by]
    before, after = _last_write(piece, is_write), _next_write(piece, is_write)
    first = np.concatenate([before[before != NOTHING], np.flatnonzero((after != NOTHING) & ~is_write)])
    second = np.concatenate([np.flatnonzero(before != NOTHING), after[(after != NOTHING) & ~is_write]])
    distinct = op[first] != op[second]
    first, second = first[distinct], second[distinct]
    raced = ~order.ordered(op[first], op[second])
    races = _once(op[first[raced]], op[second[raced]], touch[first[raced]], touch[second[raced]])
    reader = np.flatnonzero(~is_write & (touches.tag[touch] != NO_TAG))
    wrote = before[reader]
    is_wrong = _is_wrong(order, op, touches.tag[touch], wrote, reader)
    wrote, wrong = wrote[is_wrong], reader[is_wrong]
    by = np.where(wrote == NOTHING, NOTHING, op[wrote])
    touched = np.where(wrote == NOTHING, NOTHING, touch[wrote])
    return CheckedPairs(len(first), len(reader), races, _once(by, op[wrong], touched, touch[wrong]))


def _is_wrong(order: HappensBefore, op: Int64, tag: Int64, wrote: Int64, reader: Int64) -> Flags:
    """What is out of order is the other check's to tell."""
    some = wrote != NOTHING
    wrong: Flags = ~some
    wrong[some] = (tag[wrote[some]] != tag[reader[some]]) & order.ordered(op[wrote[some]], op[reader[some]])
    return wrong


def _pieces(touches: Touches) -> tuple[Int64, Int64]:
    """Rows of `touches`, each as often as it has pieces, and the piece: the edge that it begins at.

    Edges are numbered through, space after space, so that each number is of one space.
    """
    n = len(touches.start)
    at, space = np.concatenate([touches.start, touches.end]), np.tile(touches.space, 2)
    order = np.lexsort((at, space))
    sorted_at, sorted_space = at[order], space[order]
    is_new = np.ones(2 * n, np.bool_)
    is_new[1:] = (sorted_at[1:] != sorted_at[:-1]) | (sorted_space[1:] != sorted_space[:-1])
    edge = np.empty(2 * n, np.int64)
    edge[order] = np.cumsum(is_new) - 1
    first, counts = edge[:n], edge[n:] - edge[:n]
    if counts.min(initial=0) < 0:
        raise HprofError("a byte range ends before it begins; run again with `hprof run --record-ordering`.")
    if counts.sum() > MOST_PIECES:
        raise HprofError(
            f"byte ranges overlap in more than {MOST_PIECES:,} places, too many to hold; record fewer passes."
        )
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(np.arange(n), counts), np.repeat(first, counts) + within


def _last_write(piece: Int64, is_write: Flags) -> Int64:
    """The row of the last write before each access of the same piece, or NOTHING."""
    at = np.maximum.accumulate(np.where(is_write, np.arange(len(piece)), NOTHING))
    before = np.concatenate([np.full(min(1, len(at)), NOTHING), at[:-1]])
    return np.where((before != NOTHING) & (piece[before] == piece), before, NOTHING)


def _next_write(piece: Int64, is_write: Flags) -> Int64:
    n = len(piece)
    backward = _last_write(piece[::-1], is_write[::-1])[::-1]
    return np.where(backward == NOTHING, NOTHING, n - 1 - backward)


def _once(first: Int64, second: Int64, first_touch: Int64, second_touch: Int64) -> Pairs:
    """Each pair of operations once, with the first range that it was found in, in the order of issue."""
    _, kept = np.unique(np.stack([second, first]), axis=1, return_index=True)
    return Pairs(first[kept], second[kept], first_touch[kept], second_touch[kept])
