"""Pushes and pops are paired as a stack pairs them, for every thread and domain by itself."""

from __future__ import annotations

import random

import numpy as np
import pytest

from profiler.importers.cupti_spool.facts import held_bytes
from profiler.importers.cupti_spool.nvtx import push_pop_pairs
from profiler.importers.cupti_spool.spool import RECORD, RecordType


def by_stacks(rows: list[tuple[int, int, bool]]) -> set[tuple[int, int]]:
    """(push, pop) by their places, as a loop finds them."""
    stacks: dict[tuple[int, int], list[int]] = {}
    found = set()
    for at, (thread, domain, is_push) in enumerate(rows):
        stack = stacks.setdefault((thread, domain), [])
        if is_push:
            stack.append(at)
        elif stack:
            found.add((stack.pop(), at))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_as_a_stack_does(seed: int) -> None:
    rng = random.Random(seed)
    share = rng.choice([0.3, 0.5, 0.7])  # with more pops than pushes too: ranges that were open before
    rows = [(rng.randrange(3), rng.randrange(2), rng.random() < share) for _ in range(rng.randrange(200))]
    records = np.zeros(len(rows), RECORD)
    if rows:
        records["thread"], records["extra"] = zip(*((row[0] + 10, row[1]) for row in rows), strict=True)
        records["type"] = [RecordType.RANGE_PUSH if row[2] else RecordType.RANGE_POP for row in rows]
    begins, ends = push_pop_pairs(records, np.zeros(len(rows), np.int64))
    assert set(zip(begins.tolist(), ends.tolist(), strict=True)) == by_stacks(rows)


def test_no_pair_across_a_pause() -> None:
    records = np.zeros(2, RECORD)
    records["type"] = RecordType.RANGE_PUSH, RecordType.RANGE_POP
    assert len(push_pop_pairs(records, np.array([1, 1]))[0]) == 1
    assert len(push_pop_pairs(records, np.array([1, 3]))[0]) == 0


def test_a_release_counts_what_was_allocated_there() -> None:
    records = np.zeros(5, RECORD)
    records["kind"] = 1, 2, 1, 2, 2
    records["id"] = 8, 8, 8, 8, 8  # one address, used twice, and released once too often
    records["bytes"] = 100, 0, 30, 30, 30
    records["start"] = 1, 2, 3, 4, 5
    at, held = held_bytes(records[np.array([4, 2, 0, 1, 3])])
    assert (at.tolist(), held.tolist()) == ([1, 2, 3, 4, 5], [100, 0, 30, 0, 0])
