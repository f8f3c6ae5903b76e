"""Joining rows by numbers that mean something only inside a scope, such as correlation ids inside a process."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64 = npt.NDArray[np.int64]

NONE: Final = -1


def distinct(values: Int64) -> tuple[Int64, Int64]:
    """The distinct values in the order that they come, and the index of each value among them."""
    encoded = pa.array(values).dictionary_encode()
    return encoded.dictionary.to_numpy(zero_copy_only=False), encoded.indices.to_numpy().astype(np.int64)


def match(scope: Int64, number: Int64, other_scope: Int64, other_number: Int64) -> Int64:
    """For each (scope, number) the row among the others with the same pair, the first of several, or NONE.

    Numbers are 32-bit ids, and 0 means none.
    """
    _, codes = distinct(np.concatenate([scope, other_scope]))
    key = _keys(codes[: len(number)], number)
    other_key = _keys(codes[len(number) :], other_number)
    rows = np.flatnonzero(other_key != NONE)
    if len(rows) == 0:
        return np.full(len(number), NONE)
    keys = other_key[rows]
    if (keys[1:] < keys[:-1]).any():
        order = np.argsort(keys, kind="stable")
        rows, keys = rows[order], keys[order]
    at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
    return np.where((key != NONE) & (keys[at] == key), rows[at], NONE)


def _keys(scope_code: Int64, number: Int64) -> Int64:
    known = (number > 0) & (number < 1 << 32)
    return np.where(known, (scope_code << 32) | np.where(known, number, 0), NONE)
