"""The rules by which rows are left out. Each row that goes is counted under the first reason that it meets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final, Protocol, TypeVar

import numpy as np

from profiler.importers.nsys.rows import Mask
from profiler.importers.nsys.tables import NULL, Int64

MAX_DURATION_NS: Final = 1 << 50  # 13 days
MAX_FROM_MIDDLE_NS: Final = 1 << 52  # 52 days before or after the median row


class _Maskable(Protocol):
    def __len__(self) -> int: ...
    def where(self: _T, mask: Mask) -> _T: ...


_T = TypeVar("_T", bound=_Maskable)


def drop(rows: _T, what: str, reasons: Mapping[str, Mask], dropped: Counter[str]) -> _T:
    """Without the rows that any of `reasons` marks."""
    bad = np.zeros(len(rows), np.bool_)
    for reason, mask in reasons.items():
        first = mask & ~bad
        if count := int(np.count_nonzero(first)):
            dropped[f"{what}: {reason}"] += count
            bad |= first
    return rows.where(~bad) if bad.any() else rows


def impossible_times(start: Int64, end: Int64, *, on_device: bool) -> dict[str, Mask]:
    """Times that cannot be. CUPTI says 0 and 0 where it could not collect the times of device work."""
    untimed = (start == NULL) | (end == NULL)
    if on_device:
        untimed |= (start == 0) & (end == 0)
    # The difference of two hostile int64 can overflow, that of their floats cannot.
    long = end.astype(np.float64) - start.astype(np.float64) > MAX_DURATION_NS
    return {"no times": untimed, "end before start": end < start, "longer than 13 days": long}


def time_limits(start: Int64) -> tuple[int, int]:
    """52 days before and after the median start: what lies outside has damaged times."""
    middle = int(np.partition(start, len(start) // 2)[len(start) // 2]) if len(start) else 0
    low = max(middle - MAX_FROM_MIDDLE_NS, NULL + 1)
    return low, min(middle + MAX_FROM_MIDDLE_NS, np.iinfo(np.int64).max - MAX_DURATION_NS)


def far_times(start: Int64, limits: tuple[int, int]) -> dict[str, Mask]:
    """Starts outside of `time_limits`."""
    return {"more than 52 days from the others": (start < limits[0]) | (start > limits[1])}
