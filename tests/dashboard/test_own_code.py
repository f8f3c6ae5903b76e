"""Captures of commands and of callables, whose passes have no tokens and no events, open on every page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiler.engines.command import CommandRequest, parse_commands, run_commands
from profiler.engines.readings import parse_rules
from tests.dashboard.pages import PAGES, open_page, said, turn_to


def test_every_page_opens_a_capture_of_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arms = parse_commands([f"{name}=sh -c 'echo speed: {speed}'" for name, speed in (("off", 1), ("on", 2))])
    out = tmp_path / "commands"
    run_commands(CommandRequest(arms, 2, parse_rules(["t/s=speed: (.)"])), out)
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["extra"]["recorded"] = {"how": "Once more.", "capture": "x", "arms": {"on": {"bytes_h2d": 5e6}, "off": 7}}
    (out / "manifest.json").write_text(json.dumps(manifest))
    app = open_page(monkeypatch, tmp_path, "overview")
    assert "The arm on against off: t/s 2.00 x and the pass " in said(app)
    assert "too few runs for a verdict" in said(app)
    assert "nan" not in said(app)
    assert "so where their time went is unknown" in said(app)
    for page in PAGES[1:]:
        turn_to(app, page)
