"""Which steps are recorded, without a GPU: the recording itself is replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from executor.devices import cuda
from executor.devices.base import ReplayKey
from executor.devices.cuda import GraphReplays


class Recorded:
    """Stands in for a CUDA graph."""

    def __init__(self, fn: Callable[[], None]) -> None:
        self._fn, self.n_replays = fn, 0

    def replay(self) -> None:
        self.n_replays += 1
        self._fn()


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(GraphReplays, "record", lambda self, fn: Recorded(fn))
    return GraphReplays()


def test_a_step_is_run_then_replayed(replays: GraphReplays) -> None:
    ran: list[int] = []
    for _ in range(3):
        replays.launch(ReplayKey("ffn", 0), lambda: ran.append(0))
    assert len(ran) == 3
    assert replays._graphs[ReplayKey("ffn", 0)].n_replays == 2  # type: ignore[attr-defined]


def test_positions_leave_room_for_other_steps(replays: GraphReplays, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_MOST_GRAPHS", 10)
    monkeypatch.setattr(cuda, "_MOST_VARIANTS", 4)
    ran: list[int] = []
    for position in range(100):
        replays.launch(ReplayKey("attention", position), lambda: ran.append(0))
    replays.launch(ReplayKey("experts", None), lambda: ran.append(0))
    assert len(ran) == 101
    assert len(replays._graphs) == 5
    assert ReplayKey("experts", None) in replays._graphs
    replays.clear()
    replays.launch(ReplayKey("attention", 7), lambda: ran.append(0))
    assert list(replays._graphs) == [ReplayKey("attention", 7)]
