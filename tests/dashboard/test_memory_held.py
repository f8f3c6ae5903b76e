"""What the dashboard's process holds between pages, and what a page reads that has nothing to show: with captures of
10 M events each of these was half a gigabyte or more (benchmarks/command_memory.py)."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from benchmarks.metrics_scale import write_import
from dashboard import load, trace_root
from dashboard.passes import TimelineCache
from profiler import metrics
from profiler.capture import Capture
from profiler.metrics import CaptureTables, OverlapByPass
from profiler.metrics.timeline import timeline
from profiler.storage.writer import conform
from tests.dashboard.pages import open_page, turn_to
from tests.profiler import makers


class Reading:
    """What was read of captures: the options of each `load_tables`, and what came of it, as far as it still lives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.options: list[dict[str, bool]] = []
        self._recordings: list[weakref.ref[OverlapByPass]] = []
        monkeypatch.setattr(load, "load_tables", self._load_tables)

    def _load_tables(self, capture: Capture, **options: Any) -> CaptureTables:
        tables = metrics.load_tables(capture, **options)
        self.options.append(options)
        self._recordings.append(weakref.ref(tables.recording))
        return tables

    @property
    def n_held(self) -> int:
        gc.collect()
        return sum(recording() is not None for recording in self._recordings)


def found_in(root: Path, name: str = "c") -> trace_root.CaptureRef:
    return trace_root.find_capture(trace_root.TraceRoot(str(root)), name)


def test_events_are_let_go_once_they_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(monkeypatch)
    makers.dense_off_on(tmp_path / "c")
    found = found_in(tmp_path)
    before = load.report(found, "on").cells
    assert not load.figures_of_passes(found, "prefill").empty
    assert not load.figures_of_ubatches(found).empty
    assert not load.figures_of_layers(found).empty
    assert load.report(found, "off").cells[0].arms.keys() == before[0].arms.keys()
    assert reading.options == [{"by_layer": False}, {"by_layer": True}], "ubatches and layers are of one reading"
    load._report.clear()
    assert load.report(found, "on").cells == before
    assert len(reading.options) == 2
    assert reading.n_held == 0


def test_of_a_reading_by_layer_the_report_is_made_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    makers.dense_off_on(tmp_path / "c")
    makers.dense_off_on(tmp_path / "same")
    expected = load.report(found_in(tmp_path, "same")).cells
    reading = Reading(monkeypatch)
    found = found_in(tmp_path)
    assert not load.figures_of_layers(found).empty
    assert load.report(found).cells == expected
    assert load.figures_of_passes(found)["pass_id"].tolist() == Capture.open(tmp_path / "c").passes["pass_id"].tolist()
    assert reading.options == [{"by_layer": True}]


def test_pages_of_ubatches_and_layers_read_no_events_of_a_source_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_import(tmp_path / "c", 1000)
    app = open_page(monkeypatch, tmp_path, "overview")
    reading = Reading(monkeypatch)
    assert load.figures_of_ubatches(found_in(tmp_path)).empty
    assert load.figures_of_layers(found_in(tmp_path)).empty
    for page in ("selective", "layers"):
        turn_to(app, page)
    assert reading.options == [{"with_events": False}]


def test_the_memory_page_reads_nothing_but_slots_of_a_source_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    write_import(tmp_path / "c", 1000)
    rows = type(Capture.open(tmp_path / "c").rows("events"))
    take = rows.take

    def noted(self: Any, numbers: Any, columns: Any) -> Any:
        asked.append(list(columns))
        return take(self, numbers, columns)

    monkeypatch.setattr(rows, "take", noted)
    open_page(monkeypatch, tmp_path, "memory")
    assert asked.count(["slot"]) == len([columns for columns in asked if "slot" in columns]) == 1


def test_timelines_are_kept_while_they_are_few_rows_together() -> None:
    lines = [timeline(conform("events", {"t_start": [0] * n, "t_end": [1] * n})) for n in (3, 3, 3, 9)]
    keys = [(b"c", (), pass_id) for pass_id in range(len(lines))]
    kept = TimelineCache(size=3, n_rows=6)
    for key, line in zip(keys[:3], lines, strict=False):
        kept.put(key, line)
    assert [kept.get(key) is not None for key in keys] == [False, True, True, False]
    kept.put(keys[3], lines[3])
    assert [kept.get(key) is not None for key in keys] == [False, False, False, True], "one that is larger stands alone"
