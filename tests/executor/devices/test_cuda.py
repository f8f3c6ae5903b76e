"""Which steps are recorded, without a GPU: the recording itself is replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

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
    recorded: Any = replays._graphs[ReplayKey("ffn", 0)]
    assert recorded.n_replays == 2


class Gpu:
    """Stands in for torch's recording: allocations inside one have only what torch does not keep."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, kept: int, free: int) -> None:
        self.kept, self.free, self.is_recording = kept, free, False
        self.n_begun = self.n_ended = self.n_replayed = 0
        self.error_at_end: Exception | None = None
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: self)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
        monkeypatch.setattr(torch.cuda, "empty_cache", self.empty_cache)

    def empty_cache(self) -> None:
        assert not self.is_recording
        self.kept, self.free = 0, self.free + self.kept

    def capture_begin(self, **_options: Any) -> None:
        self.n_begun += 1
        self.is_recording = True

    def capture_end(self) -> None:
        self.n_ended += 1
        self.is_recording = False
        if self.error_at_end is not None:
            raise self.error_at_end

    def replay(self) -> None:
        self.n_replayed += 1

    def allocate(self, n: int) -> None:
        if n > self.free + (0 if self.is_recording else self.kept):
            raise torch.OutOfMemoryError("CUDA out of memory.")


def test_a_recording_takes_what_torch_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of six runs in the seven that torch keeps; a recording has a pool of its own."""
    gpu, replays = Gpu(monkeypatch, kept=7, free=2), GraphReplays()
    for _ in range(3):
        replays.launch(ReplayKey("ffn", 0), lambda: gpu.allocate(6))
    assert (gpu.kept, gpu.n_replayed) == (0, 2)


@pytest.mark.parametrize("ending_it_fails", [False, True])
def test_a_step_without_room_for_its_recording_runs_on(ending_it_fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, replays, ran = Gpu(monkeypatch, kept=0, free=5), GraphReplays(), list[int]()

    def step() -> None:
        if gpu.is_recording:  # its pool has less
            gpu.allocate(6)
        ran.append(0)

    if ending_it_fails:
        gpu.error_at_end = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    for _ in range(3):
        replays.launch(ReplayKey("ffn", 0), step)
    assert (len(ran), gpu.n_replayed) == (3, 0)
    assert gpu.n_begun == gpu.n_ended == 2  # and never again


def test_a_graph_that_cannot_be_made_for_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, replays, ran = Gpu(monkeypatch, kept=0, free=5), GraphReplays(), list[int]()
    gpu.error_at_end = RuntimeError("CUDA error: out of memory")
    for _ in range(2):
        replays.launch(ReplayKey("ffn", 0), lambda: ran.append(0))
    assert gpu.n_replayed == 0
    assert len(ran) == 4  # run twice, tried twice


def test_what_breaks_a_recording_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, replays = Gpu(monkeypatch, kept=0, free=5), GraphReplays()
    gpu.error_at_end = RuntimeError("CUDA error: operation failed due to a previous error during capture")

    def step() -> None:
        if gpu.is_recording:
            raise ValueError("a step's own")

    with pytest.raises(ValueError, match="a step's own"):
        replays.launch(ReplayKey("ffn", 0), step)
    assert gpu.n_ended == 1


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
