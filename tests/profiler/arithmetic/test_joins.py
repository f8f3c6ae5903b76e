"""Joins by ids: each row with its partner, whether the ids are dense or far apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.arithmetic.joins import match, rows_among


def array(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


@pytest.mark.parametrize("step", [1, 1_000_000])
def test_rows_meet_their_partner_of_the_same_scope(step: int) -> None:
    found = match(array([7, 7, 8, 7]), array([1, 3, 1, 0]) * step, array([8, 7, 7]), array([1, 1, 2]) * step)
    assert found.row.tolist() == [0, 2]  # 3 has no partner, and 0 is no id
    assert found.other.tolist() == [1, 0]


IDS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([-1, 0, 1, 2, 3, 2**31, 2**32 - 1, 2**32])), max_size=12)


@given(IDS, IDS)
def test_the_first_of_several_partners_is_taken(mine: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    columns = [array([pair[place] for pair in pairs]) for pairs in (mine, others) for place in (0, 1)]
    found = match(*columns)
    expected = [(i, others.index(pair)) for i, pair in enumerate(mine) if 0 < pair[1] < 2**32 and pair in others]
    assert list(zip(found.row.tolist(), found.other.tolist(), strict=True)) == expected


def test_keys_have_their_place_among_others_or_the_mark_of_none() -> None:
    keys = {"a": array([2, 1, 1, -1]), "b": array([5, 5, 6, 5])}
    others = {"a": array([1, 2, 3]), "b": array([6, 5, 5])}
    assert rows_among(keys, others).tolist() == [1, -1, 0, -1]
    assert rows_among(keys, {name: array([]) for name in others}).tolist() == [-1] * 4
