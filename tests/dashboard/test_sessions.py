"""Several readers at once: what one chooses, no other sees; what was read, all share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dashboard.pages import open_page, turn_to
from tests.profiler import makers


def test_two_sessions_share_no_selection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each turns pages while the other chooses otherwise, over the same cached captures."""
    makers.dense_off_on(tmp_path / "one", n_pairs=2)
    makers.dense_off_on(tmp_path / "two", n_pairs=2)
    mine = open_page(monkeypatch, tmp_path, "overview", capture="one", a="off")
    theirs = open_page(monkeypatch, tmp_path, "overview", capture="two", a="on")
    for page in ("timeline", "sweep", "layers"):
        turn_to(mine, page)
        turn_to(theirs, page)
        assert [box.value for box in mine.sidebar.selectbox][:3] == ["one", "off", "on"]
        assert [box.value for box in theirs.sidebar.selectbox][:3] == ["two", "on", "off"]
    mine.sidebar.selectbox[1].select("on").run()
    theirs.run()
    assert [box.value for box in mine.sidebar.selectbox][1:3] == ["on", "off"]
    assert [box.value for box in theirs.sidebar.selectbox][:3] == ["two", "on", "off"]
