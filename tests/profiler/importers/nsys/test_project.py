"""The projection and the innermost range agree with the definition, spelled out as loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profiler.importers.absent import is_absent, known_where
from profiler.importers.nsys.project import GroupedSpans, innermost, project

_INTERVAL = st.tuples(st.integers(0, 2), st.integers(-20, 20), st.integers(0, 15))


def _spans(rows: list[tuple[int, int, int]]) -> GroupedSpans:
    group, start, length = np.array(rows, np.int64).reshape(-1, 3).T
    return GroupedSpans(group, start, start + length)


def _is_inside(inner: GroupedSpans, i: int, outer: GroupedSpans, o: int) -> bool:
    same = inner.group[i] == outer.group[o]
    return bool(same and outer.start[o] <= inner.start[i] and inner.end[i] <= outer.end[o])


@given(
    st.lists(_INTERVAL, max_size=12),
    st.lists(_INTERVAL, max_size=12),
    st.lists(st.tuples(st.integers(-1, 11), st.integers(0, 50), st.integers(0, 9)), max_size=20),
)
def test_projection_is_what_the_definition_says(
    ranges: list[tuple[int, int, int]], calls: list[tuple[int, int, int]], ops: list[tuple[int, int, int]]
) -> None:
    outer, inner = _spans(ranges), _spans(calls)
    launched = [(call, start, start + length) for call, start, length in ops if call < len(calls)]
    call, op_start, op_end = np.array(launched, np.int64).reshape(-1, 3).T
    found = project(outer, inner, known_where(call >= 0, call), op_start, op_end)
    for index in range(len(ranges)):
        owned = [op for op in launched if op[0] >= 0 and _is_inside(inner, op[0], outer, index)]
        assert found.n_ops[index] == len(owned)
        if owned:
            assert found.first_ns[index] == min(op[1] for op in owned)
            assert found.last_ns[index] == max(op[2] for op in owned)


@given(st.lists(_INTERVAL, max_size=15), st.lists(_INTERVAL, max_size=15))
def test_innermost_is_a_range_around_it_with_the_latest_start(
    ranges: list[tuple[int, int, int]], inside: list[tuple[int, int, int]]
) -> None:
    outer, inner = _spans(ranges), _spans(inside)
    found = innermost(outer, inner)
    for index in range(len(inside)):
        around = [o for o in range(len(ranges)) if _is_inside(inner, index, outer, o)]
        assert bool(is_absent(found)[index]) == (not around)
        if around:
            assert found[index] in around
            assert outer.start[found[index]] == max(outer.start[o] for o in around)


def test_of_ranges_with_one_start_the_shortest_is_the_innermost() -> None:
    outer = _spans([(0, 0, 10), (0, 0, 5), (0, 0, 20)])
    assert innermost(outer, _spans([(0, 1, 1)])).tolist() == [1]


def test_a_call_that_straddles_the_end_of_a_range_is_outside_of_it() -> None:
    outer, inner = _spans([(0, 0, 10)]), _spans([(0, 8, 4), (0, 2, 8)])
    found = project(outer, inner, np.array([0, 1]), np.array([100, 200]), np.array([110, 220]))
    assert (found.n_ops.tolist(), found.first_ns.tolist(), found.last_ns.tolist()) == ([1], [200], [220])


def test_ranges_nested_hundreds_deep() -> None:
    depth = 200
    outer = _spans([(0, level, 2 * (depth - level)) for level in range(depth)])
    assert innermost(outer, _spans([(0, depth - 1, 1)])).tolist() == [depth - 1]
