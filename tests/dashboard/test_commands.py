"""Commands that pages show are commands that run."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import dashboard
from profiler.cli.asked import AskedOptions
from profiler.cli.run import command
from profiler.cli.run_request import build_request
from tests.dashboard.pages import open_page
from tests.profiler import makers

SHOWN = re.compile(r"(?:`|^)hprof run\b([^`\n#]*)", re.MULTILINE)


def parse(arguments: str) -> None:
    """Fails as the command line would."""
    build_request(AskedOptions.of(command.make_context("run", shlex.split(arguments))))


def texts() -> Iterator[str]:
    """Every text in the dashboard's code that holds no figure of a capture."""
    for path in Path(dashboard.__file__).parent.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        in_parts = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in in_parts:
                yield node.value


def test_every_command_told_can_be_parsed() -> None:
    shown = [found for text in texts() for found in SHOWN.findall(text)]
    assert len(shown) > 5
    for arguments in shown:
        parse(arguments)


def test_what_if_shows_a_run_a_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    makers.dense_off_on(tmp_path / "c")
    (code,) = open_page(monkeypatch, tmp_path, "what_if").code
    commands = code.value.splitlines()
    assert [SHOWN.fullmatch(line) is not None for line in commands] == [True] * 3
    for line in commands:
        parse(line.removeprefix("hprof run"))


def test_a_cells_options_can_be_parsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    makers.dense_off_on(tmp_path / "c")
    app = open_page(monkeypatch, tmp_path, "overview")
    (told,) = [text.value for text in app.caption if "This cell alone" in text.value]
    parse(told.partition("`")[2].rstrip("`"))
