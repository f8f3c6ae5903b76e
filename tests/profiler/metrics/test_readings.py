"""Figures that programs printed, as columns: the file may be a stranger's."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from profiler.metrics.readings import reading_columns


@pytest.mark.parametrize("value", [1e308, -1e308, 1e-320])
def test_readings_whose_ratios_would_be_no_numbers_are_unknown(value: float) -> None:
    readings = [[{"name": "t/s", "value": value}], [{"name": "t/s", "value": 0.0}]]
    found = reading_columns(pa.table({"readings": readings}), ["t/s"])["t/s"]
    assert np.isnan(found[0])
    assert found[1] == 0
