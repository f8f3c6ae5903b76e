"""A pass's peak, of which what only measured is no part; torch's counters are made up."""

from __future__ import annotations

import pytest
import torch

from executor import peak_memory

GPU = torch.device("cuda", 0)


class Counters:
    """torch.cuda's, of one GPU."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def hold(self, n_bytes: int) -> None:
        self.now += n_bytes
        self.peak = max(self.peak, self.now)

    def reset(self) -> None:
        self.peak = self.now


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Counters:
    counters = Counters()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: counters.peak)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: counters.reset())
    monkeypatch.setattr(peak_memory, "_before", {})
    return counters


def test_what_measures_does_not_count(gpu: Counters) -> None:
    gpu.hold(100)
    peak_memory.begin(GPU)
    gpu.hold(20)
    gpu.hold(-20)
    for _ in range(2):
        with peak_memory.uncounted():
            gpu.hold(1000)
            gpu.hold(-1000)
    assert peak_memory.peak_bytes(GPU) == 120
    gpu.hold(30)
    gpu.hold(-30)
    assert peak_memory.peak_bytes(torch.device("cuda")) == 130
    peak_memory.begin(GPU)
    assert peak_memory.peak_bytes(GPU) == 100


def test_without_a_gpu_there_is_nothing_to_count() -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with peak_memory.uncounted():
        pass
    assert peak_memory._before == {}
