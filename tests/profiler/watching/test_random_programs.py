"""Random programs whose every operation waits for all before it: whatever they copy, free and view, all is in order."""

from __future__ import annotations

import random
from typing import Any, Final

import torch

from tests.profiler.watching.fake_cuda import DEVICE, FakeCuda, FakeStream, watching

N_PROGRAMS: Final = 200
N_STEPS: Final = 25


class Program:
    """A program of random steps; `slack` is how often one of them does not wait."""

    def __init__(self, cuda: FakeCuda, rng: random.Random, slack: float) -> None:
        self._cuda, self._rng, self._slack = cuda, rng, slack
        self._streams = [cuda.current_stream(), cuda.Stream(), cuda.Stream()]
        self._on_device = [cuda.empty(64).zero_() for _ in range(3)]
        self._pinned = [cuda.pinned(64) for _ in range(2)]
        cuda.synchronize()

    def run(self) -> None:
        for _ in range(N_STEPS):
            stream = self._rng.choice(self._streams)
            if self._rng.random() >= self._slack:
                self._wait_for_all(stream)
            with self._cuda.stream(stream):
                self._rng.choice([self._compute, self._copy_in, self._copy_out, self._renew, self._host])(stream)
        self._cuda.synchronize()

    def _wait_for_all(self, stream: FakeStream) -> None:
        for other in self._streams:
            if other is not stream:
                stream.wait_stream(other)

    def _part(self, tensors: list[torch.Tensor], start: int | None = None) -> torch.Tensor:
        start = self._rng.randrange(0, 64, 8) if start is None else start
        return self._rng.choice(tensors)[start : start + 8]

    def _compute(self, _: FakeStream) -> None:
        self._part(self._on_device).add_(self._part(self._on_device))

    def _copy_in(self, _: FakeStream) -> None:
        self._part(self._on_device).copy_(self._part(self._pinned), non_blocking=True)

    def _copy_out(self, _: FakeStream) -> None:
        self._part(self._pinned).copy_(self._part(self._on_device), non_blocking=True)

    def _renew(self, _: FakeStream) -> None:
        """Freed on the stream that waits for all uses, or that the allocator is told of; its memory may come back."""
        place = self._rng.randrange(len(self._on_device))
        for user in self._streams:
            self._cuda.record_stream(self._on_device[place], user)
        self._on_device[place] = torch.empty(64, device=DEVICE)
        self._on_device[place].fill_(1)

    def _host(self, _: FakeStream) -> None:
        if self._rng.random() >= self._slack:
            self._cuda.synchronize()
        self._part(self._pinned).fill_(1)


def found_in(seed: int, slack: float) -> Any:
    check, cuda = watching()
    with check:
        Program(cuda, random.Random(seed), slack).run()
    return check.result


def test_what_waits_for_all_before_it_has_no_finding() -> None:
    results = [found_in(seed, slack=0.0) for seed in range(N_PROGRAMS)]
    assert [(seed, result.violations[0]) for seed, result in enumerate(results) if not result.is_clean] == []
    assert sum(result.n_pairs for result in results) > N_PROGRAMS * N_STEPS


def test_programs_that_do_not_wait_have() -> None:
    assert all(not found_in(seed, slack=1.0).is_clean for seed in range(10))
