"""What commands that made a capture print at the end: its report."""

from __future__ import annotations

import click


def show_report(path: str, *, as_json: bool) -> None:
    """Say where the capture is, then judge it: JSON on stdout alone, or the report as `hprof report` shows it."""
    from profiler.capture import Capture
    from profiler.report.build import build_report

    click.echo(f"Wrote {path}", err=as_json)
    report = build_report(Capture.open(path))
    if as_json:
        from profiler.report.json_ import render_json

        click.echo(render_json(report))
        return
    from rich.console import Console

    from profiler.report.terminal import print_report

    print_report(report, Console())
