"""What a run tells of how far it is."""

from __future__ import annotations

import pytest

from profiler.running.progress import LineProgress, time_left


@pytest.mark.parametrize(
    ("n_done", "n_all", "elapsed_s", "said"),
    [
        (12, 48, 60, "3 min left"),
        (1, 2, 40, "40 s left"),
        (1, 10, 1000, "2 h left"),
        (10, 11, 1, "1 s left"),
        (0, 10, 100, ""),
        (10, 10, 100, ""),
    ],
)
def test_time_left_in_the_unit_that_people_use(n_done: int, n_all: int, elapsed_s: float, said: str) -> None:
    assert time_left(n_done, n_all, elapsed_s) == said


def test_without_a_terminal_a_line_a_minute() -> None:
    written: list[str] = []
    now = iter(range(0, 10_000, 25))  # each look at the clock is 25 s later
    progress = LineProgress(written.append, lambda: float(next(now)))
    progress.start(20)
    for number in range(10):
        progress.before_pass(f"on -ub {number}")
        progress.after_pass(counts=number > 0)
    progress.stop()
    assert written == [
        "0 of 20 passes: on -ub 1",
        "3 of 20 passes, 12 min left: on -ub 4",
        "6 of 20 passes, 8 min left: on -ub 7",
    ]
