"""One list of sections: what is added to it is shown by every renderer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from profiler.export.html import render_html
from profiler.plain_text import json_text
from profiler.report import report as report_module
from profiler.report.blocks import Listing
from profiler.report.build import build_report
from profiler.report.markdown import render_markdown
from profiler.report.plain_values import number
from profiler.report.report import SECTIONS, Section
from tests.profiler import makers
from tests.profiler.report.test_renderers import terminal
from tests.support import ROOT


def _further(*_: Any) -> list[Listing]:
    return [Listing("Further", ["no read before its copy"])]


def test_a_further_section_is_shown_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = build_report(makers.dense_off_on(tmp_path / "c"))
    further = Section("further", _further, lambda _: {"further": {"races": 0}})
    monkeypatch.setattr(report_module, "SECTIONS", (*SECTIONS, further))
    for text in (terminal(report), render_markdown(report), render_html(report, [])):
        assert "Further" in text
        assert "no read before its copy" in text
    assert orjson.loads(json_text(report.to_json()))["further"] == {"races": 0}


def test_json_keeps_its_first_keys_in_their_order(tmp_path: Path) -> None:
    first = """schema capture state source baseline model machine created_utc link_h2d_gb_s arms
    cells devices findings warnings notes cannot_say dropped budgets summary"""
    keys = list(build_report(makers.dense_off_on(tmp_path / "c")).to_json())
    assert keys[:19] == first.split()


def test_rows_left_out_are_told_by_every_renderer(tmp_path: Path) -> None:
    capture = makers.dense_off_on(tmp_path / "c")
    capture.manifest = capture.manifest.with_changes(dropped={"row: end before start": 1200})
    report = build_report(capture)
    for text in (terminal(report), render_markdown(report), render_html(report, [])):
        assert "1,200: row: end before start" in text


def test_markdown_is_drawn_without_rich() -> None:
    code = "import profiler.report.markdown, sys; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_whole_numbers_of_more_than_64_bits_make_json_all_the_same() -> None:
    assert number(2.0**62) == 2**62
    assert isinstance(number(1e300), float)
    assert orjson.loads(json_text({"a": 2**70, "b": 10**400, "c": -(2**63), "d": True})) == {
        "a": 2.0**70,
        "b": None,
        "c": -(2**63),
        "d": True,
    }
