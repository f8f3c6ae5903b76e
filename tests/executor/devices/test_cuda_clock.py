"""The pass's zero on a GPU's own clock, found between events."""

from __future__ import annotations

from executor.devices.cuda_clock import zero_between


def test_the_narrowest_brackets_decide() -> None:
    zero = 1_764_612_000_123_456_789  # as large as the clock's readings are: no float holds it
    at = [1_000, 5_000, 9_000]
    stamps = [zero + ns for ns in at]
    before, after = [900.0, 4_999.0, 8_000.0], [3_000.0, 5_400.0, 9_001.0]
    assert abs(zero_between(stamps, before, after) - zero) <= 1


def test_clocks_that_disagree_are_met_in_the_middle() -> None:
    assert zero_between([100, 210], [0.0, 100.0], [0.0, 100.0]) == 105
