"""`hprof list [DIR]`: the captures in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from profiler import DEFAULT_TRACES
from profiler.cli.options import json_option
from profiler.cli.printing import console, say

if TYPE_CHECKING:
    from rich.console import Console

    from profiler.capture import CaptureSummary

_BESIDE_NAME: Final = 55  # characters that the other columns need
_UNLIMITED: Final = 10_000


@click.command()
@click.argument("folder", metavar="[DIR]", default=DEFAULT_TRACES)
@json_option
def command(folder: str, as_json: bool) -> None:
    """List the captures in a folder (default: traces), newest first.

    \b
    hprof list
    hprof list s3://bucket/traces --json
    """
    from dataclasses import asdict

    from profiler.capture import list_captures

    found = list_captures(folder)
    if as_json:
        from profiler.plain_text import json_text

        listed = {"schema": 1, "folder": folder, "captures": [asdict(summary) for summary in found]}
        say(json_text(listed))
        return
    if not found:
        say(f"There are no captures in {folder}; `hprof run` and `hprof import` write them.")
        return
    print_captures(found, console())


def print_captures(captures: Sequence[CaptureSummary], console: Console) -> None:
    """A row a capture, whose name is never broken; those that cannot be read say why."""
    from rich.table import Table
    from rich.text import Text

    from executor.units import plain

    table = Table("capture", box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for column in ("state", "source", "model", "arms", "passes", "created (UTC)"):
        table.add_column(column, overflow="fold")
    for capture in captures:
        table.add_row(*(Text(plain(text)) for text in _texts(capture)))
    console.width = _width(captures, console)
    console.print(table)
    for problem in (capture.problem for capture in captures if capture.problem):
        console.print(Text(plain(problem), style="yellow"))


def _width(captures: Sequence[CaptureSummary], console: Console) -> int:
    """Of a file or pipe as much as any line needs; of a terminal its own, and more where a name needs it."""
    from rich.cells import cell_len

    from executor.units import plain

    if not console.is_terminal:
        return _UNLIMITED
    return max(console.width, max(cell_len(plain(capture.name)) for capture in captures) + _BESIDE_NAME)


def _texts(capture: CaptureSummary) -> list[str]:
    passes = "" if capture.n_passes is None else str(capture.n_passes)
    arms, created = ", ".join(capture.arms), (capture.created_utc or "")[:19].replace("T", " ")
    return [capture.name, capture.state or "", capture.source or "", capture.model or "", arms, passes, created]
