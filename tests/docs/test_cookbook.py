"""Every command of docs/cookbook.md: run, with the output that it shows; or read, where it needs more than hprof."""

from __future__ import annotations

import re
import shlex
import tempfile

import click
import pytest

from docs.run_cookbook import run_command, shown_commands
from hprof.command_line import cli
from tests.support import ROOT

PAGE = (ROOT / "docs" / "cookbook.md").read_text(encoding="utf-8")
NEEDS_MORE = [
    line for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]


def test_the_page_shows_what_its_commands_print(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = list(shown_commands(PAGE))
    assert len(shown) > 6
    # not `tmp_path`, whose name can be longer than a line
    with tempfile.TemporaryDirectory() as folder, monkeypatch.context() as within:
        within.chdir(folder)
        for one in shown:
            code, output = run_command(one.command)
            assert code == 0, (one.command, output)
            if one.is_sample:
                assert output.split()[:1] == one.output.split()[:1], one.command
            else:  # lines break where the folder's name is longer
                again = f"{one.command}: python -m docs.run_cookbook docs/cookbook.md"
                assert output.split() == one.output.split(), again


@pytest.mark.parametrize("line", NEEDS_MORE)
def test_what_is_not_run_here_has_options_that_there_are(line: str) -> None:
    program, name, *words = shlex.split(line)
    assert program == "hprof"
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.make_context(name, words).params
