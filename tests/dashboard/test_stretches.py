"""A chosen stretch takes the place of those inside or around it, and ends where others begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dashboard.passes import first_view
from dashboard.stretches import Span, with_span
from profiler.capture import Capture
from profiler.cutting import cut_capture
from profiler.importers.cut import ArmRange
from profiler.metrics.timeline import load_timeline
from profiler.storage.writer import new_capture
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


@pytest.mark.parametrize(("host_ends_us", "expected"), [(1_000, (596, 804)), (300, None)])
def test_a_trace_opens_on_the_work_of_its_devices(
    host_ends_us: int, expected: tuple[int, int] | None, tmp_path: Path
) -> None:
    """A program's start has a few calls of its own, and host calls around everything; nobody came to see them."""
    first = 600 if expected else 50
    rows = [
        (0, "7", "h2d", 1, 1.5),
        *((0, "7", "h2d", at, at + 60) for at in (first, first + 100)),
        (0, "7", "compute", first + 60, first + 200),
        (0, "7", "sync", 0, host_ends_us),
        (None, "host", "api", 0, host_ends_us),
    ]
    names = ("device", "stream", "kind", "t_start", "t_end")
    columns: dict[str, Any] = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    columns |= {edge: [round(time * 1000) for time in columns[edge]] for edge in ("t_start", "t_end")}
    writer = new_capture(tmp_path / "c", source="nsys")
    writer.write_part("events", columns | {"process": [4711] * len(rows)}, "trace")
    writer.finish()
    line = load_timeline(Capture.open(tmp_path / "c"), by_stream=True)
    assert first_view(line) == (expected and (expected[0] * 1000, expected[1] * 1000))
