"""`hprof list [DIR]`: the captures in a folder."""

from __future__ import annotations

import click

from profiler.cli.options import DEFAULT_TRACES, json_option


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
        import orjson

        listed = {"schema": 1, "folder": folder, "captures": [asdict(summary) for summary in found]}
        click.echo(orjson.dumps(listed, option=orjson.OPT_INDENT_2).decode())
        return
    if not found:
        click.echo(f"There are no captures in {folder}; `hprof run` and `hprof import` write them.")
        return
    from rich.console import Console

    from profiler.report.terminal import print_captures

    print_captures(found, Console())
