"""The order in which arms take turns, and the rule for warm-ups."""

from __future__ import annotations

import pytest

from profiler.arithmetic.turns import arm_order, in_turn, needs_warmup


def test_two_arms_make_abba_blocks() -> None:
    order = list(in_turn(["off", "on"], 4))
    assert [arm for _, arm in order] == ["off", "on", "on", "off", "off", "on", "on", "off"]
    assert [turn for turn, _ in order] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_more_arms_are_mirrored() -> None:
    assert arm_order(["a", "b", "c"], 0) == ["a", "b", "c"]
    assert arm_order(["a", "b", "c"], 1) == ["c", "b", "a"]


def test_over_two_repetitions_every_arm_has_the_same_mean_position() -> None:
    arms = ["a", "b", "c", "d", "e"]
    order = arm_order(arms, 0) + arm_order(arms, 1)
    assert {sum(i for i, name in enumerate(order) if name == arm) for arm in arms} == {2 * len(arms) - 1}


@pytest.mark.parametrize(
    ("durations_ns", "expected"),
    [
        ([], True),
        ([100], True),
        ([100, 105], False),
        ([100, 89], True),
        ([89, 100], True),
        ([300, 100], True),
        ([300, 200, 100], False),  # three are enough, settled or not
    ],
)
def test_warm_ups_go_on_until_two_agree_or_three_are_done(durations_ns: list[int], expected: bool) -> None:
    assert needs_warmup(durations_ns) is expected


def test_an_arm_that_learns_gets_what_it_needs() -> None:
    assert [needs_warmup([100] * n, least=6) for n in range(7)] == [True] * 6 + [False]
    assert needs_warmup([100, 300, 100, 300, 100, 300], least=6) is False
