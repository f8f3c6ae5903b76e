"""Runs the commands of a page like docs/cookbook.md and writes their output below them.

`python -m docs.run_cookbook docs/cookbook.md`. A block is a line "```console", then `$ hprof ...` lines, each followed
by what it printed; "```console sample" has output that others may see otherwise. Other blocks are not run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hprof import main as hprof

_BLOCK = re.compile(r"^```console(?P<kind> sample)?\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_PROMPT = "$ "


@dataclass(frozen=True, slots=True)
class Shown:
    """One command of a page, and what the page shows of its output."""

    command: str
    output: str
    is_sample: bool  # whether the output depends on the machine


def shown_commands(page: str) -> Iterator[Shown]:
    """Every command that is to be run, in order: later ones use what earlier ones wrote."""
    for block in _BLOCK.finditer(page):
        for part in re.split(r"^\$ ", block["body"], flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield Shown(command, output, block["kind"] is not None)


def run_command(command: str) -> tuple[int, str]:
    """Exit code and output, of a terminal of 80 columns, without the names of this machine's folders. Of a command that
    went well stderr is left out: it says how far a run is.
    """
    words = shlex.split(command)
    assert words[0] == "hprof", command
    said, beside = io.StringIO(), io.StringIO()
    columns = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(beside):
            code = hprof(words[1:])
    finally:
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns
    told = said.getvalue() + (beside.getvalue() if code else "")
    told = told.replace(f"{Path.cwd()}/", "").replace(sys.executable, "~/.venv/bin/python")
    return code, "\n".join(line.rstrip() for line in told.splitlines())


def rewritten(page: str) -> str:
    """The page with the output that its commands have now."""

    def run_block(block: re.Match[str]) -> str:
        told = []
        for line in block["body"].splitlines():
            if line.startswith(_PROMPT):
                told += [line, run_command(line.removeprefix(_PROMPT))[1]]
        return "\n".join([f"```console{block['kind'] or ''}", *told, "```"])

    return _BLOCK.sub(run_block, page)


def main(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        page = rewritten(page)
    path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
