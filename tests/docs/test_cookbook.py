"""Every command of docs/cookbook.md: run, with the output that it shows; or read, where it needs more than hprof."""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from pathlib import Path

import click
import pytest

from docs.run_cookbook import run_command, shown_commands
from hprof.command_line import cli
from tests.support import ROOT

PAGE = (ROOT / "docs" / "cookbook.md").read_text(encoding="utf-8")
NEEDS_MORE = [
    line for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]


def held(command: str, output: str) -> set[str]:
    """What a sample's output says on every machine: the names of what `doctor` looks at, and all of a run that no clock
    and no processor has a part in.
    """
    if command == "hprof doctor":
        found = set(re.findall(r"^(?:ok|poor|absent|failed) +([a-z ]+):", output, re.MULTILINE))
        assert found
        return found
    assert command.startswith("hprof run --engine command")
    timed = r"^(Measured|The machine was loaded|on |Not shown|As fast as|Slower than|Set|on a quiet one|all ).*\n?"
    said = re.sub(timed, "", output, flags=re.MULTILINE)
    said = re.sub(r"( --all) \(.*\)$", r"\1", said, flags=re.MULTILINE)  # a slow machine has warnings to count
    return {re.sub(r" {2,}", " ", line) for line in said.splitlines()}


@pytest.mark.parametrize("line", [line for line in NEEDS_MORE if "--engine llama-bench" in line])
def test_llama_benchs_commands_run_with_a_stand_in(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = ROOT / "tests" / "profiler" / "engines" / "fake_llama_bench.py"
    with tempfile.TemporaryDirectory() as folder, monkeypatch.context() as within:
        within.chdir(folder)
        for build in ("old", "new", "build"):
            program = Path(build, "bin", "llama-bench")
            program.parent.mkdir(parents=True)
            program.write_text(f"#!{sys.executable}\n{stand_in.read_text(encoding='utf-8')}", encoding="utf-8")
            program.chmod(0o755)
        code, output = run_command(line)
        assert code == 0, output
        words = " ".join(output.split())
        assert words.startswith("Wrote traces/")
        assert ("1.000 no difference" if "--bin old" in line else "1.43 faster") in words, words


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
                assert held(one.command, one.output) <= held(one.command, output), one.command
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
