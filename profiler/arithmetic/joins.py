"""Rows joined by integer columns, without a sort where the columns' ranges are small.

A join may be limited to a scope, as correlation ids are to a process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from executor.arrays import Int64
from profiler.arithmetic.groups import group_by

_NONE: Final = -1
_DENSE: Final = 8  # a table of keys may have this many places for each key


def distinct(values: Int64) -> tuple[Int64, Int64]:
    """The distinct values in the order that they come, and the index of each value among them."""
    if len(values) and values[0] == values[-1] and bool((values == values[0]).all()):
        return values[:1].copy(), np.zeros(len(values), np.int64)
    encoded = pa.array(values).dictionary_encode()
    return encoded.dictionary.to_numpy(zero_copy_only=False), encoded.indices.to_numpy().astype(np.int64)


class Matches(NamedTuple):
    """Rows that a join found a partner for, and their partners: `other[i]` is the partner of row `row[i]`."""

    row: Int64
    other: Int64


def match(scope: Int64, number: Int64, other_scope: Int64, other_number: Int64) -> Matches:
    """Each (scope, number) with the row among the others that has the same pair, the first of several.

    Numbers are 32-bit ids, and 0 means none.
    """
    other = _matched(scope, number, other_scope, other_number)
    row = np.flatnonzero(other != _NONE)
    return Matches(row, other[row])


def _matched(scope: Int64, number: Int64, other_scope: Int64, other_number: Int64) -> Int64:
    _, codes = distinct(np.concatenate([scope, other_scope]))
    key = _keys(codes[: len(number)], number)
    other_key = _keys(codes[len(number) :], other_number)
    highest = int(other_key.max(initial=_NONE))
    if highest <= _DENSE * len(other_key):
        return _matched_dense(key, other_key, highest)
    rows = np.flatnonzero(other_key != _NONE)
    keys = other_key[rows]
    if (keys[1:] < keys[:-1]).any():
        order = np.argsort(keys, kind="stable")
        rows, keys = rows[order], keys[order]
    at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
    return np.where((key != _NONE) & (keys[at] == key), rows[at], _NONE)


def _matched_dense(key: Int64, other_key: Int64, highest: int) -> Int64:
    """Keys that are counted up, as ids mostly are, need no search: a table has the row of each."""
    # _NONE and keys beyond the table lead to its last two places, where there is none
    row_of_key = np.full(highest + 3, _NONE, np.int64)
    row_of_key[other_key[::-1]] = np.arange(len(other_key))[::-1]
    row_of_key[-1] = _NONE
    return row_of_key[np.minimum(key, highest + 1)]


def _keys(scope_code: Int64, number: Int64) -> Int64:
    known = (number > 0) & (number < 1 << 32)
    if known.all():
        return (scope_code << 32) | number
    return np.where(known, (scope_code << 32) | np.where(known, number, 0), _NONE)


def rows_among(keys: Mapping[str, Int64], others: Mapping[str, Int64]) -> Int64:
    """For each element of `keys` the place of the same one among `others`, which have none twice; -1 where none is."""
    n_keys = len(next(iter(keys.values())))
    both = group_by({name: np.concatenate([values, others[name]]) for name, values in keys.items()})
    place = np.full(len(both), -1, np.int64)
    place[both.of_row[n_keys:]] = np.arange(len(both.of_row) - n_keys)
    return place[both.of_row[:n_keys]]
