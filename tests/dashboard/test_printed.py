"""The Overview of commands that print a figure of themselves: it ranks arms by what the report leads with."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from dashboard.overview.ranking import ranked, ranking_table
from profiler.capture import Capture
from profiler.report.build import build_report
from tests.dashboard.pages import open_page, said
from tests.profiler import makers
from tests.profiler.report.answers import joined

# `on` prints the best rate and takes longest, loading included; `other` is the fastest by wall time
SPEEDS = {"off": 10, "on": 20, "other": 15}
WALLS_MS = {"off": 100, "on": 125, "other": 50}


def with_rules(path: Path, rules: dict[str, dict[str, str]]) -> Capture:
    """The capture with these words on what its programs printed."""
    makers.printed_by_commands(path, SPEEDS, WALLS_MS)
    manifest = orjson.loads((path / "manifest.json").read_bytes())
    manifest["extra"]["readings"] = rules
    (path / "manifest.json").write_bytes(orjson.dumps(manifest))
    return Capture.open(path)


def test_page_and_report_rank_by_what_the_programs_printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = build_report(makers.printed_by_commands(tmp_path / "c", SPEEDS, WALLS_MS))
    (cell,) = report.cells
    assert ranked(cell, []) == ["on", "other", "off"]
    assert "Set: on, by t/s." in joined(report)
    app = open_page(monkeypatch, tmp_path, "overview", capture="c")
    assert app.title[0].value.replace("\\", "") == "The arm on made t/s 2.00 x and the pass 0.80 x as fast as off."
    assert [(one.label, one.value) for one in app.metric][:2] == [("t/s", "20.0"), ("The whole pass", "125 ms")]
    buttons = {str(one.key): one.label.replace("\\", "") for one in app.button if str(one.key).startswith("make-b-")}
    assert list(buttons) == ["make-b-on", "make-b-other"]
    first, speed, *_ = buttons["make-b-on"].split("\n")
    assert first.startswith("**on** ▲ 2.00 x")
    assert speed == "t/s 20.0"
    assert "t/s" in {row for frame in app.dataframe if "figure" in frame.value for row in frame.value["figure"]}


def test_the_table_of_arms_has_what_they_printed(tmp_path: Path) -> None:
    (cell,) = build_report(makers.printed_by_commands(tmp_path / "c", SPEEDS, WALLS_MS)).cells
    table = ranking_table(cell, ["on", "other", "off"])
    assert table["times as fast as off"].tolist() == pytest.approx([2, 1.5, 1], abs=1e-3)
    assert table["t/s (printed)"].tolist() == pytest.approx([20, 15, 10], abs=0.01)


def test_what_is_better_neither_way_ranks_nothing(tmp_path: Path) -> None:
    report = build_report(with_rules(tmp_path / "c", {"t/s": {}}))
    (cell,) = report.cells
    assert ranked(cell, []) == ["other", "off", "on"]
    assert "Set: other" in joined(report)


def test_a_figures_name_is_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    evil = "**t** [x](javascript:1) <b>"
    makers.printed_by_commands(tmp_path / "c", SPEEDS, WALLS_MS, name=evil)
    makers.printed_by_commands(tmp_path / "d", SPEEDS, WALLS_MS, name="")
    app = open_page(monkeypatch, tmp_path, "overview", capture="c")
    assert evil in said(app)
    for shown in (app.title[0].value, app.metric[0].label, app.button(key="make-b-on").label):
        assert "[x](" not in shown
    assert not open_page(monkeypatch, tmp_path, "overview", capture="d").error
