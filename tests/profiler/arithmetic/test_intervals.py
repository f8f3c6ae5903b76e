"""The interval algebra against a brute-force grid on which every cell is looked at one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.errors import HprofError
from profiler.arithmetic.intervals import (
    MAX_ABS_NS,
    Intervals,
    Line,
    covered_length,
    intersect,
    segments_in,
    subtract,
    union,
)

GRID = 40
CELL_NS = 1000  # a microsecond grid: interval edges fall on its lines
Pairs = list[tuple[int, int]]
pairs = st.lists(st.tuples(st.integers(-GRID, GRID), st.integers(-GRID, GRID)), max_size=12)


def arrays(items: Pairs) -> tuple[np.ndarray, np.ndarray]:
    both = np.array(items, np.int64).reshape(-1, 2) * CELL_NS
    return both[:, 0], both[:, 1]


def cells(items: Pairs) -> set[int]:
    return {cell for start, end in items for cell in range(start, end)}


def cells_of(found: Intervals) -> set[int]:
    assert (found.ends > found.starts).all()
    assert (found.starts[1:] >= found.ends[:-1]).all()
    return {c for s, e in zip(found.starts // CELL_NS, found.ends // CELL_NS, strict=True) for c in range(s, e)}


@settings(deadline=None)
@given(pairs)
def test_union_covers_exactly_the_cells_of_its_intervals(a: Pairs) -> None:
    found = union(*arrays(a))
    assert cells_of(found) == cells(a)
    assert found.total == len(cells(a)) * CELL_NS
    assert (found.starts[1:] > found.ends[:-1]).all(), "touching intervals are merged"


@settings(deadline=None)
@given(pairs, pairs)
def test_intersect_and_subtract_match_the_grid(a: Pairs, b: Pairs) -> None:
    ua, ub = union(*arrays(a)), union(*arrays(b))
    assert cells_of(intersect(ua, ub)) == cells(a) & cells(b)
    assert cells_of(subtract(ua, ub)) == cells(a) - cells(b)


@settings(deadline=None)
@given(pairs, pairs)
def test_covered_length_counts_busy_cells_in_each_window(busy: Pairs, windows: Pairs) -> None:
    found = covered_length(union(*arrays(busy)), *arrays(windows))
    expected = [len(cells(busy) & set(range(s, e))) * CELL_NS for s, e in windows]
    assert found.tolist() == expected


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-GRID, GRID), st.integers(0, GRID)), max_size=20))
def test_a_line_gives_each_group_the_union_it_has_alone(rows: list[tuple[int, int, int]]) -> None:
    table = np.array(rows, np.int64).reshape(-1, 3)
    groups, starts = table[:, 0], table[:, 1] * CELL_NS
    ends = starts + table[:, 2] * CELL_NS
    line = Line(groups, starts, ends, 4)
    found = line.union(groups, starts, ends)
    owner = line.group_of(found.starts)
    for group in range(4):
        alone = union(starts[groups == group], ends[groups == group])
        mine = owner == group
        assert line.times_of(found.starts[mine], owner[mine]).tolist() == alone.starts.tolist()
        assert line.times_of(found.ends[mine], owner[mine]).tolist() == alone.ends.tolist()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-GRID, GRID), st.integers(0, GRID)), max_size=20),
    st.sampled_from([4, 20, 1 << 17]),
)
def test_segments_in_groups_are_the_unions_that_they_have_alone(
    rows: list[tuple[int, int, int]], n_groups: int
) -> None:
    """Few groups, more than are looked through one by one, and more than 16 bits count."""
    table = np.array(rows, np.int64).reshape(-1, 3)
    groups, starts = n_groups - 1 - table[:, 0], table[:, 1] * CELL_NS
    ends = starts + table[:, 2] * CELL_NS
    found = segments_in(groups, starts, ends, n_groups)
    assert found.first[0] == found.first[n_groups - 4] == 0
    assert found.first[n_groups] == len(found.starts) == len(found.ends)
    for group in range(n_groups - 4, n_groups):
        alone, mine = union(starts[groups == group], ends[groups == group]), slice(*found.first[group : group + 2])
        assert (found.starts[mine].tolist(), found.ends[mine].tolist()) == (alone.starts.tolist(), alone.ends.tolist())


def test_the_largest_times_do_not_overflow() -> None:
    edge = np.array([MAX_ABS_NS], np.int64)
    assert union(-edge, edge).total == 2 * MAX_ABS_NS
    groups = np.arange(300, dtype=np.int64)
    with pytest.raises(HprofError, match="damaged"):
        Line(groups, np.repeat(-edge, 300), np.repeat(edge, 300), 300)
