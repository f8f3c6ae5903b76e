"""A token's graph and its memory, without a GPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu import token_budget
from benchmarks.gpu.common import Workload
from tests.executor.engine.recording_cpu import Recorder
from tests.executor.engine_runs import open_session

MIB = 1 << 20


def test_what_each_graph_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is recorded once for each reading behind the first, by a device that takes memory in pieces."""
    recorder = Recorder()
    recorder.install(monkeypatch)
    monkeypatch.setattr(
        token_budget, "_bytes_beside_torch", lambda: 100 * MIB + recorder.n_recorded * 300_000 // (2 * MIB) * 2 * MIB
    )
    with open_session("tiny-moe", ["full"], dtype=torch.float32) as session:
        found = token_budget.memory(session, Workload(n_prompt=0, n_ubatch=1, n_gen=4, n_depth=8), 70)
    assert found["token_graphs"] == 70
    assert found["token_graph_bytes"] == pytest.approx(300_000, rel=0.05)
    assert recorder.n_recorded == 71


def test_less_than_a_piece_says_nothing() -> None:
    assert token_budget.bytes_of_each([8 * MIB, 8 * MIB]) is None
    assert token_budget.bytes_of_each([8 * MIB, 8 * MIB, 10 * MIB]) == MIB
    assert token_budget.bytes_of_each([8 * MIB, 6 * MIB]) is None  # another process ended
