"""Times keep every nanosecond of their decimal text, whatever the clock's base."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.importers.kineto.rows import EXACT_US, InexactError, exact_ns, integers

_SMALL_NS = st.integers(-int(EXACT_US) * 1000 + 1, int(EXACT_US) * 1000 - 1)
_EPOCH_NS = st.integers(1_600_000_000 * 10**9, 1_900_000_000 * 10**9)


def _us_text(ns: int) -> str:
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


@given(st.lists(_SMALL_NS, min_size=1))
def test_floats_below_the_bound_give_the_nanosecond_of_their_text(times: list[int]) -> None:
    ns, valid = exact_ns([json.loads(_us_text(t)) for t in times])
    assert valid.all()
    assert ns.tolist() == times


@given(st.lists(_EPOCH_NS, min_size=1))
def test_text_of_absolute_clocks_is_exact_where_floats_are_not(times: list[int]) -> None:
    ns, valid = exact_ns([_us_text(t) for t in times])
    assert valid.all()
    assert ns.tolist() == times


def test_a_float_of_an_absolute_clock_is_refused_since_it_would_lose_nanoseconds() -> None:
    text = "1712345678901234.567"
    assert round(json.loads(text) * 1000) != 1712345678901234567
    with pytest.raises(InexactError):
        exact_ns([json.loads(text)])


def test_whole_microseconds_of_an_absolute_clock_are_exact_as_they_are() -> None:
    ns, _ = exact_ns([1661203462598738, 1661203462598739])
    assert ns.tolist() == [1661203462598738000, 1661203462598739000]


def test_mixed_forms_keep_their_own_precision() -> None:
    ns, valid = exact_ns([1712345678901234, "1712345678901234.567", 1.5, "2e3", "-0.001"])
    assert valid.all()
    assert ns.tolist() == [1712345678901234000, 1712345678901234567, 1500, 2_000_000, -1]


@pytest.mark.parametrize("bad", [None, True, "", "abc", "nan", "inf", "1e400", 10**30, [1], {}, "9" * 70])
def test_what_is_no_time_is_marked(bad: Any) -> None:
    _, valid = exact_ns([1.0, bad])
    assert valid.tolist() == [True, False]


def test_integers_take_digits_and_nothing_that_would_be_cut() -> None:
    found = integers([7, "8", 9.0, 9.5, None, True, "x", 2**63, "-3", "1e3"])
    assert found.to_pylist() == [7, 8, 9, None, None, None, None, None, -3, None]
    assert integers([1, 2]).to_numpy().dtype == np.int64
