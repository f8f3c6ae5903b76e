"""The order in which arms take turns, and when one has warmed up: the same for passes, processes and callables.

Arms are interleaved in mirror order, so that a drift of the machine (heat, clocks, other users) touches all arms alike:
turn 0 runs them forward, turn 1 backward, which makes ABBA blocks of two turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

Arm = TypeVar("Arm")

MAX_WARMUPS: Final = 3
WARMUP_TOLERANCE: Final = 0.10


def arm_order(arms: Sequence[Arm], turn: int) -> list[Arm]:
    """The arms of one turn (a repetition, a boot), mirrored every other time."""
    return list(arms) if turn % 2 == 0 else list(reversed(arms))


def in_turn(arms: Sequence[Arm], n_turns: int) -> Iterator[tuple[int, Arm]]:
    """(turn, arm) over all turns: A B, B A, A B, ..."""
    return ((turn, arm) for turn in range(n_turns) for arm in arm_order(arms, turn))


def needs_warmup(durations_ns: Sequence[int], least: int = 1) -> bool:
    """Whether an arm needs one more discarded run, given those it had.

    It has had at least `least`, and has settled when its last two took the same time within 10 %; after three (or
    `least`, where an arm has more to learn) it is measured as it is.
    """
    if len(durations_ns) >= max(MAX_WARMUPS, least):
        return False
    if len(durations_ns) < max(2, least):
        return True
    before, last = durations_ns[-2:]
    return abs(last - before) >= WARMUP_TOLERANCE * max(last, before)
