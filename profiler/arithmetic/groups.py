"""Rows grouped by integer columns, without a sort where the columns' ranges are small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from executor.arrays import Floats, Int64

_Scalar = TypeVar("_Scalar", bound=np.generic)
_DENSE_LIMIT: Final = 1 << 24  # combinations for which a lookup table beats sorting
_PACKED_LIMIT: Final = 1 << 62
_MAX_SUM: Final = 1 << 62  # where millions of rows claim a terabyte each


@dataclass(frozen=True, slots=True)
class Groups:
    """`of_row[i]` is row i's group; `keys[name][g]` is group g's value. Groups are in the keys' order."""

    of_row: Int64
    keys: dict[str, Int64]

    def __len__(self) -> int:
        return len(next(iter(self.keys.values())))

    def sum(self, values: npt.NDArray[np.integer | np.bool_]) -> Int64:
        """Sum of `values` (one a row) in each group; exact while a group's sum is below 2^53."""
        return sum_by(self.of_row, values, len(self))

    def sum_floats(self, values: Floats) -> Floats:
        """Sum of `values` in each group; NaN where one of them is."""
        summed: Floats = np.bincount(self.of_row, weights=values, minlength=len(self)).astype(np.float64)
        return summed

    def count(self) -> Int64:
        """Rows in each group."""
        return np.bincount(self.of_row, minlength=len(self)).astype(np.int64)


def sum_by(groups: Int64, values: npt.NDArray[np.integer | np.bool_ | np.floating], n_groups: int) -> Int64:
    """Sum of `values` in each of `n_groups` groups; exact below 2^53, and never beyond 2^62."""
    sums = np.bincount(groups, weights=values, minlength=n_groups)
    return sums.clip(-_MAX_SUM, _MAX_SUM).astype(np.int64)


def group_by(columns: Mapping[str, npt.NDArray[np.signedinteger]]) -> Groups:
    """Group rows that agree in every column (at least one column; all of one length)."""
    n_rows = len(next(iter(columns.values())))
    packed, n_possible = np.zeros(n_rows, np.int64), 1
    for values in columns.values():
        digits, size = _digits(values)
        if n_possible * size > _PACKED_LIMIT:
            packed, n_possible = _ranked(packed)
        if size > 1:
            packed *= size
            packed += digits
            n_possible *= size
    of_row, a_row = _distinct(packed, n_possible)
    return Groups(of_row, {name: values[a_row].astype(np.int64) for name, values in columns.items()})


def _digits(values: npt.NDArray[np.signedinteger]) -> tuple[npt.NDArray[np.signedinteger], int]:
    """The column as small numbers from 0, in the same order, and how many there may be (of one, any number)."""
    if len(values) == 0:
        return values, 1
    low, high = int(values.min()), int(values.max())
    if high == low:
        return values, 1
    return (values - low, high - low + 1) if high - low < _DENSE_LIMIT else _ranked(values)


def _ranked(values: npt.NDArray[np.signedinteger]) -> tuple[Int64, int]:
    ascending, ranks = np.unique(values, return_inverse=True)
    return ranks, len(ascending)


def _distinct(packed: Int64, n_possible: int) -> tuple[Int64, Int64]:
    """Each row's group, and some row of each group."""
    if n_possible > _DENSE_LIMIT:
        _, a_row, of_row = np.unique(packed, return_index=True, return_inverse=True)
        return of_row, a_row
    last = np.full(n_possible, -1, np.int64)
    last[packed] = np.arange(len(packed))
    present = last >= 0
    if present.all():
        return packed, last
    return (np.cumsum(present) - 1)[packed], last[present]


def concatenated(parts: Sequence[Mapping[str, npt.NDArray[_Scalar]]]) -> dict[str, npt.NDArray[_Scalar]]:
    """Tables of the same columns, one below the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
