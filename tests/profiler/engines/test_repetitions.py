"""What llama-bench says of its repetitions while it runs."""

from __future__ import annotations

import pytest

from profiler.engines.repetitions import ProgressLines


def test_lines_are_noted_when_they_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10, 20, 30])
    monkeypatch.setattr("profiler.engines.repetitions.time.time_ns", lambda: next(clock))
    lines = ProgressLines()
    for piece in (
        b"llama-bench: benchmark 1/2: warmup prompt run\nllama-bench: benchmark 1/2: prompt r",
        b"un 1/2\nllama-bench: benchmark 1/2: depth run 2/2\n",
        b"llama-bench: benchmark 1/2: prompt run 2/2\nllama-bench: benchmark 1/2: generation run 2/2\n",
    ):
        lines(piece)
    assert lines.told_ns == {(1, 1): 20, (1, 2): 30}
