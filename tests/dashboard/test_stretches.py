"""A chosen stretch takes the place of those inside or around it, and ends where others begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboard.stretches import Span, with_span
from profiler.cutting import cut_capture
from profiler.importers.cut import ArmRange
from tests.dashboard.pages import open_page, said, turn_to
from tests.profiler import makers


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ((30, 40), [(0, 10), (20, 30), (30, 40)]),
        ((8, 22), [(0, 10), (10, 20), (20, 30)]),
        ((25, 40), [(0, 10), (20, 30), (30, 40)]),
        ((19, 31), [(0, 10), (19, 31)]),
        ((22, 25), [(0, 10), (22, 25)]),
        ((-5, 12), [(0, 12), (20, 30)]),
    ],
)
def test_stretches_do_not_overlap(span: Span, expected: list[Span]) -> None:
    assert with_span([(0, 10), (20, 30)], span) == expected


def test_pages_of_stretches_name_no_size_that_nobody_knows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ranges = [ArmRange("off", 0, 120_000), ArmRange("on", 120_000, 400_000)]
    cut_capture(makers.imported_without_passes(tmp_path / "whole").path, ranges, tmp_path / "root" / "cut")
    app = open_page(monkeypatch, tmp_path / "root", "selective")
    assert "No copy of these passes says which ubatch it belongs to." in said(app)
    app = turn_to(app, "sweep")
    assert "The source does not say of which size these passes are" in said(app)
    assert not any("ubatch 0" in table.value.columns for table in app.dataframe)
