"""The notebooks in examples/ run as they stand, and show what is stored in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs.run_notebook import executed
from tests.support import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def texts(cells: list[dict[str, object]]) -> list[str]:
    """What each code cell shows as text."""
    found = []
    for cell in cells:
        outputs = cell.get("outputs")
        assert isinstance(outputs, list | None)
        found += ["".join(output["data"]["text/plain"]) for output in outputs or ()]
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_shows_what_is_stored_in_it(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert texts(stored["cells"])
    assert texts(executed(stored)["cells"]) == texts(stored["cells"])


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS
