"""The order of passes and the rule for warm-ups."""

from __future__ import annotations

import pytest

from profiler.planning.request import GridPoint, arm_order, grid, needs_warmup


def test_two_arms_make_abba_blocks() -> None:
    order = [arm for repetition in range(4) for arm in arm_order(["off", "on"], repetition)]
    assert order == ["off", "on", "on", "off", "off", "on", "on", "off"]


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


def test_the_grid_is_every_combination() -> None:
    cells = grid([512, 1024], [0, 16], [64, 256], [0])
    assert len(cells) == len(set(cells)) == 8
    assert cells[0] == GridPoint(512, 0, 64, 0)
    assert {cell.n_ubatch for cell in cells[:4]} == {64}


def test_what_a_cell_needs() -> None:
    cell = GridPoint(n_prompt=100, n_gen=5, n_ubatch=32, n_depth=7)
    assert cell.n_positions == 112
    assert cell.n_ubatches == 4 + 5
