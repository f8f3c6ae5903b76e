"""int64 columns in which a row may have no value: numpy has no null, and a mask beside each column doubles the work.

One number stands for "no value", and only this module knows which. It is no time, size, id, code or row number that a
file can hold and hprof keep. Codes and row numbers are never negative, and neither is "no value" there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa

from executor.arrays import Flags, Int64

_ABSENT: Final = int(np.iinfo(np.int64).min)

SQL_LITERAL: Final = str(_ABSENT)
"""What a query gives for a cell without an integer; it reads back as no value."""


def absent(n_rows: int) -> Int64:
    """A column in which no row has a value."""
    return np.full(n_rows, _ABSENT)


def column_of(values: Iterable[int | None]) -> Int64:
    """A column of these values; None for none."""
    return np.array([_ABSENT if value is None else value for value in values], np.int64)


def is_absent(values: Int64) -> Flags:
    """The rows without a value."""
    found: Flags = values == _ABSENT
    return found


def is_known(values: Int64) -> Flags:
    """The rows with a value."""
    found: Flags = values != _ABSENT
    return found


def known_where(has_value: Flags, values: Int64 | int) -> Int64:
    """`values` where `has_value`, no value elsewhere."""
    return np.where(has_value, values, _ABSENT)


def taken(values: Int64, rows: Int64) -> Int64:
    """values[rows]; no value where `rows` has none, or is negative."""
    found: Int64 = np.append(values, _ABSENT)[np.maximum(rows, -1)]
    return found


def from_arrow(column: pa.Array | pa.ChunkedArray) -> Int64:
    """An arrow column of integers; nulls have no value. Without any it may be the column's own memory."""
    column = column.cast(pa.int64())
    filled = column.fill_null(_ABSENT) if column.null_count else column
    if isinstance(filled, pa.ChunkedArray):
        filled = filled.chunk(0) if filled.num_chunks == 1 else filled.combine_chunks()
    values: Int64 = filled.to_numpy(zero_copy_only=False)
    return values


def to_arrow(values: Int64, kind: pa.DataType) -> pa.Array:
    """An arrow column of this integer type; null where there is no value, or one that does not fit."""
    if kind == pa.int32():
        small = values.astype(np.int32)
        missing = small != values
        return pa.array(small, kind, mask=missing if missing.any() else None)
    missing = is_absent(values)
    return pa.array(values, kind, mask=missing if missing.any() else None)
