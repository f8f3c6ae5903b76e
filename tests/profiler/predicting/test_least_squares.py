"""Fits of times: what scatters does not pull them, and no part is below nothing."""

from __future__ import annotations

import numpy as np
import pytest

from profiler.predicting.least_squares import fit_relative


def test_a_time_that_scatters_is_fitted_by_its_mean() -> None:
    ns = np.array([100.0, 140.0, 60.0, 100.0])
    [found] = fit_relative(np.ones((4, 1)), ns, np.ones(4))
    assert found == pytest.approx(100.0, rel=1e-3)


def test_small_and_large_times_count_alike() -> None:
    work = np.array([1.0, 10.0, 100.0, 1000.0])
    found = fit_relative(np.stack([np.ones(4), work], axis=1), 50 + 3 * work, np.ones(4))
    assert found == pytest.approx([50.0, 3.0])


def test_what_is_known_is_taken_off_and_nothing_is_negative() -> None:
    work = np.array([1.0, 2.0, 4.0])
    assert fit_relative(work[:, None], 10 + 2 * work, np.ones(3), known=10.0) == pytest.approx([2.0])
    assert fit_relative(np.stack([np.ones(3), work], axis=1), 10 - work, np.ones(3))[1] == 0.0
