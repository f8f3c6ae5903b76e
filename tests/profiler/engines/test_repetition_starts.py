"""When a recorded llama-bench's repetitions began: decided by gaps, or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from profiler.arithmetic.intervals import Intervals, covered_length, union
from profiler.engines.repetition_starts import Told, repetition_starts

MS, US = 1_000_000, 1_000


def busy(*work: tuple[int, int]) -> Intervals:
    starts, ends = (np.array(edge, np.int64) for edge in zip(*work, strict=True))
    return union(starts, ends)


def told(times: Sequence[int], length: int) -> list[Told]:
    return [Told(at, length, number > 0) for number, at in enumerate(times)]


def kernels(start: int, end: int, *, pause: int = 2 * US) -> list[tuple[int, int]]:
    """Kernels of 20 us with a short pause between two, from `start` to `end`."""
    return [(at, min(at + 20 * US, end)) for at in range(start, end, 20 * US + pause)]


# loading, a warm-up and three repetitions, each with half a millisecond of the host's work ahead of it
LENGTH = 50 * MS
STARTS = [200 * MS, 250 * MS + 100 * US, 300 * MS + 200 * US]
WORK = busy(
    *kernels(0, 40 * MS),
    *kernels(150 * MS, 199 * MS),
    *[one for start in STARTS for one in kernels(start + 500 * US, start + LENGTH - 20 * US)],
)


@pytest.mark.parametrize("late", [0, 20 * US, 3 * MS])
def test_repetitions_lie_between_gaps_however_late_their_lines_were_read(late: int) -> None:
    found = repetition_starts(told([start + late for start in STARTS], LENGTH), WORK)
    assert found is not None
    for begin, start in zip(found, STARTS, strict=True):
        inside = (WORK.starts >= begin) & (WORK.ends <= begin + LENGTH)
        expected = (WORK.starts >= start) & (WORK.ends <= start + LENGTH)
        assert (inside == expected).all(), "the same work"


def test_lines_that_say_another_length_than_the_gaps_decide_nothing() -> None:
    assert repetition_starts(told(STARTS, LENGTH - 20 * MS), WORK) is None


def test_two_gaps_that_would_do_decide_nothing() -> None:
    """Work that comes and goes every 2 ms: each gap leads to another one a whole number of them later."""
    alike = busy(*[(at * 2 * MS, at * 2 * MS + 1900 * US) for at in range(200)])
    assert repetition_starts(told([101 * 2 * MS - 10 * US], 20 * MS), alike) is None


def test_no_gap_decides_nothing() -> None:
    assert repetition_starts(told([100 * MS], 50 * MS), busy((0, 1000 * MS))) is None


@dataclass
class Timeline:
    """What devices did while a llama-bench ran, and what is known of its repetitions."""

    rng: random.Random
    now: int = 0
    work: list[tuple[int, int]] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def run(self, n_ns: int, wait_ns: int = 0) -> None:
        """The device is idle for about `wait_ns`, and then busy for about `n_ns`."""
        self.now += round(wait_ns * self.rng.uniform(0.8, 1.2))
        end = self.now + round(n_ns * self.rng.uniform(0.98, 1.02))
        self.work.append((self.now, end))
        self.now = end

    def token(self) -> None:
        """Inputs one by one, a graph, and the logits: what a resident model's token is."""
        for _ in range(6):
            self.run(2 * US, 14 * US)
        self.run(1300 * US, 25 * US)
        self.run(15 * US, 5 * US)
        self.now += 40 * US  # the host hears of it, and begins the next

    def ubatch(self) -> None:
        """Copies and kernels in turn, with waits between: a prompt whose FFN is in host memory."""
        for _ in range(4):
            self.run(2 * US, 14 * US)
        for _ in range(15):
            for _ in range(3):
                self.run(900 * US, 100 * US)
            self.run(1900 * US, 20 * US)
        self.now += 150 * US

    def repeat(self, step: Callable[[], None], n_steps: int, late_ns: int, *, is_next: bool) -> None:
        """A repetition that is timed, and told after `late_ns`."""
        self.now += self.rng.randrange(20 * US, 60 * US)
        start = self.now
        self.now += 80 * US
        for _ in range(n_steps):
            step()
        self.starts.append(start)
        self.told.append(Told(start + 5 * US + late_ns, self.now - start, is_next))

    def bench(self, what: str, n: int, late: Callable[[], int]) -> None:
        """Loading, a warm-up and `n` repetitions of a prompt or of generation."""
        for _ in range(300):
            self.run(800 * US, 5 * US)
        self.now += 5 * MS
        step, n_steps, n_warm = (self.token, 128, 1) if what == "generation" else (self.ubatch, 4, 4)
        for _ in range(n_warm):
            step()
        for number in range(n):
            self.repeat(step, n_steps, late(), is_next=number > 0)

    def found(self) -> list[int] | None:
        return repetition_starts(self.told, busy(*self.work))

    def wrong_share(self, found: list[int]) -> float:
        """The largest share of a repetition's busy time that was taken wrongly."""
        line = busy(*self.work)
        lengths = np.array([one.length_ns for one in self.told], np.int64)
        starts, given = (np.array(one, np.int64) for one in (self.starts, found))
        whole = covered_length(line, starts, starts + lengths)
        wrong = [
            covered_length(line, np.minimum(a, b), np.maximum(a, b))
            for a, b in ((given, starts), (given + lengths, starts + lengths))
        ]
        return float(np.max(sum(wrong) / whole))


def reader(rng: random.Random, *, loaded: bool) -> Callable[[], int]:
    """How late a line is read: some 80 us; on a loaded machine now and then some milliseconds."""
    return lambda: (
        rng.randrange(1 * MS, 5 * MS) if loaded and rng.random() < 0.3 else round(rng.expovariate(1 / (80 * US)))
    )


@pytest.mark.parametrize("loaded", [False, True], ids=["idle", "loaded"])
@pytest.mark.parametrize("what", ["generation", "prompt"])
def test_benches_as_they_run_are_cut_right(what: str, loaded: bool) -> None:
    """Tokens and copies that repeat leave many gaps: the lines that were read at once tell which is meant."""
    for seed in range(20):
        rng = random.Random(f"{what} {loaded} {seed}")
        line = Timeline(rng)
        line.bench(what, 5, reader(rng, loaded=loaded))
        found = line.found()
        assert found is not None, seed
        assert line.wrong_share(found) < 2e-3, seed


def test_two_tests_of_one_process() -> None:
    rng = random.Random(7)
    line = Timeline(rng)
    for what in ("prompt", "generation"):
        line.bench(what, 2, reader(rng, loaded=False))
    found = line.found()
    assert found is not None
    assert line.wrong_share(found) < 2e-3


@pytest.mark.parametrize("n", [1, 2])
def test_a_line_or_two_say_nothing_of_what_is_usual(n: int) -> None:
    """All some milliseconds late: no answer, or the right one."""
    for seed in range(10):
        rng = random.Random(seed)
        line = Timeline(rng)
        line.bench("generation", n, lambda: 4 * MS)
        found = line.found()
        assert found is None or line.wrong_share(found) < 2e-3, seed


def test_of_several_lines_one_is_read_soon() -> None:
    """Where tokens leave other answers, and all lines lie some time behind what would do, something else is wrong."""
    line = Timeline(random.Random(5))
    line.bench("generation", 5, lambda: 700 * US)
    assert line.found() is None


def test_a_busy_device_of_another_process_decides_nothing() -> None:
    """Work without gaps, whatever llama-bench says."""
    line = Timeline(random.Random(3))
    line.bench("generation", 3, lambda: 50 * US)
    line.work = [(0, line.now)]
    assert line.found() is None
