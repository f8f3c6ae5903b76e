"""Sums of what a time grows with, fitted to measured times so that relative misses are small.

scipy.optimize takes half a second to import, and predictions by rates fit nothing: it is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from executor.arrays import Floats

_ROUNDS: Final = 4
_FAR: Final = 4.0


def fit_relative(matrix: Floats, ns: Floats, counts: Floats, known: Floats | float = 0.0) -> Floats:
    """(parts,): coefficients, none below 0, of `matrix` (samples, parts) that come nearest to `ns` (samples,).

    Misses are taken relative to the fit, not to the sample: the latter would favour samples that happen to be small,
    and where single samples scatter by a quarter, the fit would be 6 % too low. `counts` (samples,) are their weights,
    `known` is what part of `ns` is not fitted.
    """
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-12)
    scaled, expected = matrix / scale, np.maximum(ns, 1.0)
    for _ in range(_ROUNDS):
        weight = np.sqrt(counts) / expected
        found = not_negative(scaled * weight[:, None], (ns - known) * weight)
        expected = np.maximum(np.clip(known + scaled @ found, ns / _FAR, ns * _FAR), 1.0)
    return np.asarray(found / scale)


def not_negative(matrix: Floats, values: Floats) -> Floats:
    """(parts,): coefficients, none below 0, of `matrix` (samples, parts) that come nearest to `values` (samples,)."""
    from scipy.optimize import nnls

    return np.asarray(nnls(matrix, values)[0])


def least_misses(
    misses: Callable[[Floats], Floats], start: Floats | Sequence[float], **options: Any
) -> tuple[Floats, Floats]:
    """The parameters at which `misses` have the least sum of squares, and those misses; `options` as scipy's
    least_squares takes them."""
    from scipy.optimize import least_squares

    found = least_squares(misses, start, **options)
    return np.asarray(found.x), np.asarray(found.fun)
