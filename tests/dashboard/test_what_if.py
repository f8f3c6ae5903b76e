"""The What if page: predictions by a fit to the capture, other settings, and why there are none for some captures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.dashboard.pages import open_page, said
from tests.profiler import makers
from tests.support import ROOT


def test_a_sweep_is_predicted_with_bands_and_measured_points(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "traces" / "example-sweep", tmp_path / "sweep")
    app = open_page(monkeypatch, tmp_path, "what_if")
    assert "Predicted by a fit to this capture" in said(app)
    app.number_input(key="link").set_value(5.0).run()
    assert not app.exception
    app.selectbox(key="gpu").set_value("rtx4090").run()
    assert not app.exception
    assert "By the rates of rtx4090 alone" in said(app)
    app.number_input(key="budget").set_value(0.01).run()
    assert "too small" in said(app)


def test_a_link_slower_than_any_bus_is_shown_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "traces" / "example", tmp_path / "slow")  # 0.1 GB/s
    app = open_page(monkeypatch, tmp_path, "what_if")
    assert not app.exception
    assert "whose copies reach 0." in said(app)


def test_a_capture_without_a_command_line_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    makers.dense_off_on(tmp_path / "c")
    assert "cannot be fitted to" in said(open_page(monkeypatch, tmp_path, "what_if"))
