"""What the findings hold of a capture's events while they judge them: of 10 M rows each part of it is 0.1 to 1 GB."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.metrics_scale import write_import
from profiler.capture import Capture
from profiler.findings import CopyAnalysis
from profiler.findings.finding import Subjects
from profiler.schema import ABSENT


def test_the_table_of_events_is_let_go_before_they_are_laid_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_import(tmp_path / "c", 1000)
    read: list[weakref.ref[pa.Table]] = []
    table, n_alive = Capture.table, []

    def noted(self: Capture, name: str, *args: Any, **options: Any) -> pa.Table:
        found = table(self, name, *args, **options)
        if name == "events":
            read.append(weakref.ref(found))
        return found

    def counted(*args: Any) -> Any:
        n_alive.append(sum(one() is not None for one in read))
        return Subjects(*args)

    monkeypatch.setattr(Capture, "table", noted)
    monkeypatch.setattr("profiler.findings.analysis.Subjects", counted)
    CopyAnalysis.of(Capture.open(tmp_path / "c"))
    assert (len(read), n_alive) == (1, [0])


def test_a_column_that_no_row_fills_is_one_number(tmp_path: Path) -> None:
    write_import(tmp_path / "c", 1000)
    view = CopyAnalysis.of(Capture.open(tmp_path / "c"))
    n_rows = len(view.role)
    for name in ("correlation_id", "waits_for"):
        assert view.ints[name].strides == (0,)
        assert view.ints[name].shape == (n_rows,)
        assert np.unique(view.ints[name]).tolist() == [ABSENT]
    assert view.ints["bytes"].strides == (8,)
