"""`hprof export CAPTURE`: write a capture for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from profiler.cli.completion import complete_captures
from profiler.cli.printing import say

_FORMATS = ("chrome", "csv", "parquet", "html")


@click.command()
@click.argument("captures", nargs=-1, required=True, metavar="CAPTURE...", shell_complete=complete_captures)
@click.option("--format", "form", type=click.Choice(_FORMATS), default="chrome", help="What to write.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File; a folder for csv and parquet.")
@click.option("--passes", metavar="LIST", help="Pass numbers such as 0,4-6, or all.  [default: see below]")
@click.option("--force", is_flag=True, help="Replace what is already there.")
def command(captures: tuple[str, ...], form: Any, output: Path | None, passes: str | None, *, force: bool) -> None:
    """Write a capture as Chrome/Perfetto JSON, CSV, parquet, or a self-contained HTML report.

    chrome and html show one typical pass of each arm, all starting at zero; csv and parquet hold every pass.
    Open chrome's file at ui.perfetto.dev. Several captures go side by side into one chrome file.

    \b
    hprof export traces/tiny-dense                          tiny-dense.trace.json
    hprof export traces/tiny-dense --format html -o report.html
    hprof export traces/run --format csv --passes 0-3 -o tables/
    """
    from profiler.capture import Capture
    from profiler.export import export
    from profiler.running.termination import terminable

    with terminable():
        written = export([Capture.open(capture) for capture in captures], form, output, passes, force=force)
    for path in written:
        say(f"Wrote {path}")
