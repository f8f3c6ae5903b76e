"""Against a check that needs no cleverness: all pairs of operations, and which can be reached from which."""

from __future__ import annotations

import random
from typing import Final

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.passes import THREAD, OrderingOp, OrderingRecord
from profiler.ordering.clocks import happens_before
from profiler.ordering.operations import operations_of_records
from profiler.ordering.pairs import check_pairs
from tests.profiler.ordering.records import check, without

STREAMS = ("compute", "copy", "host", THREAD)
N_EVENTS: Final = 4
N_SCHEDULES: Final = 1_000


class Reached:
    """Records one after the other, each with a set (as bits) of those that have ended before it begins."""

    def __init__(self) -> None:
        self.records: list[OrderingRecord] = []
        self.before: list[int] = []
        self._last: dict[str, int] = {}  # a stream -> what has ended once it gets here
        self._events: dict[int, int] = {}

    def known(self, record: OrderingRecord) -> int:
        """What has ended before `record` would begin. The thread issues it, so what the thread knew holds."""
        known = self._last.get(record.stream, 0) | self._last.get(THREAD, 0)
        if record.op in ("wait", "sync") and record.event is not None:
            known |= self._events.get(record.event, 0)
        return known

    def add(self, record: OrderingRecord) -> None:
        known = self.known(record)
        ended = known | 1 << len(self.records)
        if record.op == "record" and record.event is not None:
            self._events[record.event] = ended
        self._last[record.stream] = ended
        self.records.append(record)
        self.before.append(known)

    def races(self, record: OrderingRecord) -> bool:
        """Whether `record`, issued now, could meet an earlier one that is not over."""
        known, mine = self.known(record), touches(record)
        return any(
            not known >> number & 1 and (writes or also) and start < end2 and start2 < end
            for number, other in enumerate(self.records)
            for start, end, writes in touches(other)
            for start2, end2, also in mine
        )


def has_race(records: list[OrderingRecord]) -> bool:
    reached = Reached()
    for record in records:
        if reached.races(record):
            return True
        reached.add(record)
    return False


def touches(record: OrderingRecord) -> list[tuple[int, int, bool]]:
    return [(a, b, False) for _, a, b, _ in record.reads] + [(a, b, True) for _, a, b, _ in record.writes]


ranges = st.tuples(st.integers(0, 6), st.integers(1, 4)).map(lambda at: ("cpu", at[0], at[0] + at[1], ""))


@st.composite
def schedules(draw: st.DrawFn) -> list[OrderingRecord]:
    records = []
    for sequence in range(draw(st.integers(2, 24))):
        op: OrderingOp = draw(st.sampled_from(["launch", "copy", "record", "wait", "sync"]))
        stream = THREAD if op == "sync" else draw(st.sampled_from(STREAMS[:3] if op != "launch" else STREAMS))
        record = OrderingRecord(sequence, stream, op, sequence, device=0)
        if op in ("launch", "copy"):
            record.reads = draw(st.lists(ranges, max_size=2))
            record.writes = draw(st.lists(ranges, max_size=2))
        else:
            record.event = draw(st.integers(0, N_EVENTS - 1))
        records.append(record)
    return records


@settings(deadline=None)
@given(schedules())
def test_races_are_found_where_there_are_any_and_nowhere_else(records: list[OrderingRecord]) -> None:
    assert bool(check(records).n_races) == has_race(records)


def clean_schedule(rng: random.Random) -> list[OrderingRecord]:
    """Random operations, with an event and a wait before each that would race, for each stream that it races with."""
    reached, event = Reached(), N_EVENTS
    for _ in range(rng.randint(2, 16)):
        record = random_operation(rng)
        for stream in STREAMS[:3]:
            if stream == record.stream or not reached.races(record):
                continue
            waiter, op = (THREAD, "sync") if record.stream == THREAD else (record.stream, "wait")
            reached.add(OrderingRecord(0, stream, "record", 0, event=event, device=0))
            reached.add(OrderingRecord(0, waiter, op, 0, event=event, device=0))  # type: ignore[arg-type]
            event += 1
        reached.add(record)
    for sequence, record in enumerate(reached.records):
        record.sequence = sequence
    return reached.records


def random_operation(rng: random.Random) -> OrderingRecord:
    op: OrderingOp = rng.choice(["launch", "launch", "copy", "copy", "record", "wait", "sync"])
    stream = THREAD if op == "sync" else rng.choice(STREAMS if op == "launch" else STREAMS[:3])
    record = OrderingRecord(0, stream, op, 0, device=0)
    if op not in ("launch", "copy"):
        record.event = rng.randrange(N_EVENTS)
        return record
    for touched in (record.reads, record.writes):
        for _ in range(rng.randint(0, 2)):
            start = rng.randint(0, 6)
            touched.append(("cpu", start, start + rng.randint(1, 4), ""))
    return record


def which_race(schedules: list[list[OrderingRecord]]) -> set[int]:
    """The places of those in which the check finds a race, all checked at once, as passes of a capture."""
    order = happens_before(operations_of_records(schedules))
    return set(np.unique(order.ops.pass_id[check_pairs(order).races.second]).tolist())


def test_a_thousand_clean_schedules_have_no_finding_and_no_needed_wait_can_go() -> None:
    rng = random.Random(20261201)
    clean = [clean_schedule(rng) for _ in range(N_SCHEDULES)]
    assert which_race(clean) == set()
    left = [without(one, wait.sequence) for one in clean for wait in one if wait.op in ("wait", "sync")]
    racing = {place for place, records in enumerate(left) if has_race(records)}
    assert len(racing) > N_SCHEDULES
    assert len(left) - len(racing) > N_SCHEDULES // 2, "waits that are not needed are left out too"
    assert which_race(left) == racing
