"""The example page of docs/adding-a-page.md runs as it stands, inside the app's frame."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from executor.units import format_bytes
from profiler.capture import Capture
from tests.dashboard.pages import said, texts
from tests.profiler import makers
from tests.support import ROOT

_FRAME = "from dashboard import choice, trace_root\n\nchoice.choose(trace_root.trace_root())\n"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    """The example over the captures of `tmp_path / "traces"`; before its last line stands what app.py does first."""
    text = (ROOT / "docs" / "adding-a-page.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    body, last_line, rest = example.rpartition("main(current())")
    assert rest == "\n"
    script = tmp_path / "peaks.py"
    script.write_text(body + _FRAME + last_line, encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["app.py", "--traces", str(tmp_path / "traces")])
    return AppTest.from_file(str(script), default_timeout=60)


def test_the_example_page_says_who_held_most(page: AppTest, tmp_path: Path) -> None:
    makers.dense_off_on(tmp_path / "traces" / "c", n_pairs=1)
    page.run()
    assert not page.exception
    most = Capture.open(tmp_path / "traces" / "c").passes["vram_peak"].max()
    assert f"held the most: {format_bytes(most)}." in said(page)


def test_the_example_page_says_what_is_unknown(page: AppTest, tmp_path: Path) -> None:
    makers.imported_without_passes(tmp_path / "traces" / "c")
    page.run()
    assert not page.exception
    assert any("no passes" in text for text in texts(page))
