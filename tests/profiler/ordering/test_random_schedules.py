"""Against a check that needs no cleverness: all pairs of operations, and which can be reached from which."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from executor.passes import THREAD, OrderingOp, OrderingRecord
from tests.profiler.ordering.records import check, without

STREAMS = ("compute", "copy", "host", THREAD)
N_EVENTS = 4


def reachable(records: list[OrderingRecord]) -> list[set[int]]:
    """For each operation those that have ended before it begins."""
    before: list[set[int]] = []
    last: dict[str, int] = {}
    events: dict[int, int] = {}
    for number, record in enumerate(records):
        known: set[int] = set()
        for stream in {record.stream, THREAD}:  # the thread issued it, so what the thread knew holds
            if stream in last:
                known |= before[last[stream]] | {last[stream]}
        if record.op in ("wait", "sync") and record.event in events:
            at = events[record.event]
            known |= before[at] | {at}
        if record.op == "record" and record.event is not None:
            events[record.event] = number
        before.append(known)
        last[record.stream] = number
    return before


def touches(record: OrderingRecord) -> list[tuple[int, int, bool]]:
    return [(a, b, False) for _, a, b, _ in record.reads] + [(a, b, True) for _, a, b, _ in record.writes]


def has_race(records: list[OrderingRecord]) -> bool:
    before = reachable(records)
    return any(
        first not in before[second] and (writes or also) and start < end2 and start2 < end
        for first, second in combinations(range(len(records)), 2)
        for start, end, writes in touches(records[first])
        for start2, end2, also in touches(records[second])
    )


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


def made_clean(records: list[OrderingRecord]) -> list[OrderingRecord]:
    """With an event and a wait before each operation that would race, for each stream that it races with."""
    clean: list[OrderingRecord] = []
    event = N_EVENTS
    for record in records:
        for stream in STREAMS[:3]:
            if stream == record.stream or not has_race([*clean, record]):
                continue
            waiter, op = (THREAD, "sync") if record.stream == THREAD else (record.stream, "wait")
            clean.append(OrderingRecord(0, stream, "record", 0, event=event, device=0))
            clean.append(OrderingRecord(0, waiter, op, 0, event=event, device=0))  # type: ignore[arg-type]
            event += 1
        clean.append(record)
    for sequence, record in enumerate(clean):
        record.sequence = sequence
    return clean


@settings(deadline=None)
@given(schedules())
def test_races_are_found_where_there_are_any_and_nowhere_else(records: list[OrderingRecord]) -> None:
    assert bool(check(records).n_races) == has_race(records)


@settings(deadline=None)
@given(schedules())
def test_a_clean_schedule_has_no_finding_and_no_needed_wait_can_go(records: list[OrderingRecord]) -> None:
    clean = made_clean(records)
    assert not has_race(clean)
    assert check(clean).is_clean
    for wait in clean:
        if wait.op in ("wait", "sync"):
            left = without(clean, wait.sequence)
            assert bool(check(left).n_races) == has_race(left)
