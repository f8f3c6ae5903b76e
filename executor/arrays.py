"""What the elements of NumPy arrays are, by name: one type each, which all signatures share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Int64 = NDArray[np.int64]
"""Times in nanoseconds, bytes, ids and row numbers."""
Flags = NDArray[np.bool_]
"""Which rows or experts something holds for."""


def flags_of(numbers: Int64, n: int) -> Flags:
    """Flags (n,) that hold for these numbers."""
    flags = np.zeros(n, dtype=np.bool_)
    flags[numbers] = True
    return flags
