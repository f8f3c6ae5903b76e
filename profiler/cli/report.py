"""`hprof report CAPTURE`: judge a capture."""

from __future__ import annotations

import click

from profiler.cli.options import json_option, noise_option


@click.command()
@click.argument("capture")
@click.option(
    "--format",
    "form",
    type=click.Choice(["terminal", "md", "json"]),
    default="terminal",
    help="How to show it.",
)
@json_option
@noise_option
def command(capture: str, form: str, as_json: bool, noise: float) -> None:
    """Judge a capture: arms side by side, with intervals and verdicts.

    CAPTURE is a folder, or any fsspec URL (s3://bucket/run).

    \b
    hprof report traces/tiny-dense
    hprof report traces/tiny-dense --format md > report.md
    """
    from profiler.capture import Capture

    report = Capture.open(capture).report(noise)
    if as_json or form == "json":
        from profiler.report.json_ import render_json

        click.echo(render_json(report))
    elif form == "md":
        from profiler.report.markdown import render_markdown

        click.echo(render_markdown(report), nl=False)
    else:
        from rich.console import Console

        from profiler.report.terminal import print_report

        print_report(report, Console())
