"""Ordering records that no run has: refused in a sentence, before memory is taken for them."""

from __future__ import annotations

import pytest

from executor.errors import HprofError
from executor.passes import OrderingRecord
from profiler.ordering import clocks
from tests.profiler.ordering.records import check


def launches(ranges: list[tuple[int, int]]) -> list[OrderingRecord]:
    return [
        OrderingRecord(i, "compute", "launch", i, device=0, writes=[("cuda:0", *one, "")])
        for i, one in enumerate(ranges)
    ]


def waits_of(n_streams: int) -> list[OrderingRecord]:
    """Each stream records the one event and waits for it."""
    return [
        OrderingRecord(2 * i + second, f"stream {i}", "wait" if second else "record", 0, event=0, device=0)
        for i in range(n_streams)
        for second in (0, 1)
    ]


def test_a_range_that_ends_before_it_begins() -> None:
    with pytest.raises(HprofError, match="ends before it begins"):
        check(launches([(0, 64), (64, 32)]))


def test_an_empty_range_touches_nothing() -> None:
    assert check(launches([(0, 64), (32, 32)])).is_clean


def test_ranges_that_all_overlap_are_more_pieces_than_fit() -> None:
    n = 4_100
    assert check(launches([(i, n + i) for i in range(100)])).is_clean
    with pytest.raises(HprofError, match="too many to hold; record fewer passes"):
        check(launches([(i, n + i) for i in range(n)]))


def test_more_streams_than_any_machine_has() -> None:
    assert check(waits_of(100)).is_clean
    with pytest.raises(HprofError, match=r"1,100 waits of 1,100 streams are more than is held"):
        check(waits_of(1_100))


def test_more_streams_and_waits_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "MOST_CLOCK_BYTES", 8 * 100 * 100 - 1)
    assert check(waits_of(99)).is_clean
    with pytest.raises(HprofError, match=r"100 waits of 100 streams"):
        check(waits_of(100))
