"""`hprof list [DIR]`: the captures in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from profiler import DEFAULT_TRACES
from profiler.cli.options import json_option, named
from profiler.cli.printing import UNLIMITED, console, say

if TYPE_CHECKING:
    from rich.console import Console

    from profiler.capture import CaptureSummary


@click.command()
@click.argument("folder", metavar="[DIR]", default=DEFAULT_TRACES, callback=named)
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
    """A row a capture; those that cannot be read say why. On a terminal, where it does not fit, a small list each. No
    name is broken: it is there to be copied.
    """
    from rich.cells import cell_len
    from rich.text import Text

    from executor.errors import plain
    from profiler.report.blocks import Table
    from profiler.report.terminal import FittingTable

    columns = ["capture", "state", "source", "model", "arms", "passes", "created (UTC)"]
    table = Table("", columns, [_texts(capture) for capture in captures], n_left=5)
    console.width = (
        max(console.width, *(cell_len(name) for name, *_ in table.rows)) if console.is_terminal else UNLIMITED
    )
    console.print(FittingTable(table))
    for problem in (capture.problem for capture in captures if capture.problem):
        console.print(Text(plain(problem), style="yellow"))


def _texts(capture: CaptureSummary) -> list[str]:
    from executor.errors import plain

    passes = "" if capture.n_passes is None else str(capture.n_passes)
    arms, created = ", ".join(capture.arms), (capture.created_utc or "")[:19].replace("T", " ")
    return [plain(capture.name), capture.state or "", capture.source or "", capture.model or "", arms, passes, created]
