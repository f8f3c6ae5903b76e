"""Captures that change, break or go away while a page is open."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from dashboard import trace_root
from tests.dashboard.pages import open_page, said
from tests.profiler import makers


def test_a_capture_that_went_away_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    makers.dense_off_on(tmp_path / "a")
    makers.dense_off_on(tmp_path / "b")
    app = open_page(monkeypatch, tmp_path, "overview", capture="a")
    assert "not any more" not in said(app)
    shutil.rmtree(tmp_path / "a")
    app.run()
    assert not app.exception
    assert "not any more" in said(app)
    assert app.query_params["capture"] == "b"


@pytest.mark.parametrize("error", [FileNotFoundError("gone"), pa.ArrowInvalid("half a part")])
def test_a_file_replaced_while_it_is_read_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    makers.dense_off_on(tmp_path / "a")

    def broken(path: str) -> trace_root.Fingerprint:
        raise error

    monkeypatch.setattr(trace_root, "fingerprint", broken)
    app = open_page(monkeypatch, tmp_path, "overview", capture="a")
    assert "reload the page" in app.error[0].value
    assert len(app.error) == 1


@pytest.mark.parametrize("page", ["overview", "timeline", "layers", "memory"])
def test_parts_cut_while_the_page_is_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, page: str) -> None:
    makers.dense_off_on(tmp_path / "a")
    app = open_page(monkeypatch, tmp_path, page, capture="a")
    for part in (tmp_path / "a" / "events").glob("*.parquet"):
        part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])
    app.run()
    assert not app.exception
    assert "not a readable parquet part" in app.error[0].value


def test_links_that_lead_out_are_not_followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    makers.dense_off_on(tmp_path / "outside" / "secret")
    makers.dense_off_on(tmp_path / "root" / "a")
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "outside" / "secret")
    app = open_page(monkeypatch, tmp_path / "root", "overview", capture="linked")
    assert app.query_params["capture"] == "a"
    (option,) = app.selectbox[0].options
    assert option.startswith("a · ")
    manifest = tmp_path / "root" / "a" / "manifest.json"
    manifest.unlink()
    manifest.symlink_to("/etc/passwd")
    app.run()
    assert not app.exception
    assert "root:" not in said(app)
