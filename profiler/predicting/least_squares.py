"""Sums of what a time grows with, fitted to measured times so that relative misses are small."""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.optimize import nnls

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
        found = nnls(scaled * weight[:, None], (ns - known) * weight)[0]
        expected = np.maximum(np.clip(known + scaled @ found, ns / _FAR, ns * _FAR), 1.0)
    return np.asarray(found / scale)
