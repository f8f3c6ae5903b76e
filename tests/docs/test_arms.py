"""docs/arms.md has a section and a drawing for every arm, and its figures are those of the drawings."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from executor.policies import ARMS
from tests.support import ROOT

DOCS = ROOT / "docs"
DRAWINGS = sorted((DOCS / "img" / "arms").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
TEXT = (DOCS / "arms.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("arm", [*ARMS, "cache", "hot+cache"])
def test_every_arm_is_explained_and_drawn(arm: str) -> None:
    assert re.search(rf"^## {re.escape(arm)}\b", TEXT, re.MULTILINE)
    drawing = f"img/arms/{arm.replace('+', '-')}.svg"
    assert f"]({drawing})" in TEXT
    assert (DOCS / drawing).exists()


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.stem)
def test_a_drawing_is_small_and_self_contained(path: Path) -> None:
    assert path.stat().st_size < 20_000
    root = ElementTree.parse(path).getroot()
    assert root.get("aria-label")
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        *("svg", "title", "style", "defs", "pattern", "path", "rect", "text"),
    }
    assert "prefers-color-scheme:dark" in path.read_text(encoding="utf-8")
    assert "http" not in path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert f"](img/arms/{path.name})" in TEXT


@pytest.mark.parametrize("name", ["off", "on", "hot", "cache", "both", "cpu"])
def test_the_text_quotes_what_is_drawn(name: str) -> None:
    title = ElementTree.parse(DOCS / "img" / "arms" / f"{name}.svg").getroot().findtext(f"{SVG}title") or ""
    found = re.search(r"in ([\d.]+) ms", title)
    assert found is not None
    assert re.search(rf"\b{re.escape(found[1])}\b", TEXT)


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What docs/draw_arms.py defines, as `python docs/draw_arms.py` would see it."""
    monkeypatch.syspath_prepend(str(DOCS))
    names = runpy.run_path(str(DOCS / "draw_arms.py"))
    monkeypatch.delitem(sys.modules, "timeline_svg", raising=False)
    return names


def test_each_drawing_has_a_scene(scripts: dict[str, Any]) -> None:
    assert {scene.name for scene in scripts["scenes"](TEXT)} == {path.stem for path in DRAWINGS}


def test_a_scene_is_drawn_from_a_run(scripts: dict[str, Any], tmp_path: Path) -> None:
    """With a model small enough for a test: two layers of tiny-moe."""
    run = "-m tiny-moe --layers 2 --link-gb-s 1 -r 1 -ub 32 -p 96 -n 0"
    wanted = [scripts["Scene"](arm, f"{run} --arms {arm}", (1, 1), "two layers", 6, 0.2) for arm in ("off", "on")]
    off, on = scripts["draw_all"](tmp_path, wanted, "sim")
    assert _boxes(off)["exposed"] >= 2
    assert "h2d" not in _boxes(off)
    assert _boxes(on)["h2d"] >= 1
    assert {"0", "1"} <= {text.text for text in ElementTree.parse(on).getroot().iter(f"{SVG}text")}


def _boxes(path: Path) -> dict[str, int]:
    """How many rectangles of each class, faded ones left out."""
    counts: dict[str, int] = {}
    for rect in ElementTree.parse(path).getroot().iter(f"{SVG}rect"):
        counts[rect.get("class", "")] = counts.get(rect.get("class", ""), 0) + 1
    return counts


def test_text_of_a_picture_is_never_markup(scripts: dict[str, Any]) -> None:
    picture = scripts["Picture"]('<script>"&', '"><script>', 1.0, [scripts["Box"]("copy", 0.0, 1.0, "h2d", "<b>")])
    root = ElementTree.fromstring(scripts["draw"](picture))
    assert not list(root.iter(f"{SVG}script"))
    assert root.get("aria-label") == '"><script>'
    assert "<b>" in {text.text for text in root.iter(f"{SVG}text")}
