"""`hprof report CAPTURE...`: judge captures, and print the report. `run` and `import` print theirs with
`show_report` as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from profiler.cli.completion import complete_captures
from profiler.cli.options import dask_option, json_option, named, noise_option, refuse_other_format, whole_option
from profiler.cli.printing import console, say

if TYPE_CHECKING:
    from executor.errors import HprofError
    from profiler.report.report import Report


@click.command()
@click.argument(
    "captures", metavar="CAPTURE...", nargs=-1, required=True, callback=named, shell_complete=complete_captures
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["terminal", "md", "json"]),
    default="terminal",
    help="How to show it.",
)
@whole_option
@click.option(
    "--cell",
    "cells",
    multiple=True,
    metavar="SIZES",
    help="Only this cell, with all of its figures, named as in the table: ub=512 or ub=512,d=0; repeatable.",
)
@json_option
@noise_option
@dask_option("judge the captures")
def command(
    captures: tuple[str, ...],
    form: str,
    cells: tuple[str, ...],
    noise: float,
    dask: str | None,
    *,
    is_whole: bool,
    as_json: bool,
) -> None:
    """Judge captures: an answer of a screen; with --all or --cell every figure, interval, verdict and finding.

    CAPTURE is a capture, or a folder of captures, each a path or any fsspec URL (s3://bucket/run).

    \b
    hprof report traces/tiny-dense
    hprof report traces/tiny-dense --cell ub=256
    hprof report traces/tiny-dense --all
    hprof report traces/tiny-dense --format md > report.md
    hprof report --dask tcp://host:8786 s3://bucket/traces --json
    """
    refuse_other_format(as_json=as_json, form=form)
    from profiler.capture import expand_captures
    from profiler.report.shown_cells import with_cells

    paths = expand_captures(captures)
    judged = _judged(paths, noise, dask)
    reports = (found if isinstance(found, Exception) else with_cells(found, cells) for found in judged)
    form = "json" if as_json else "answer" if form == "terminal" and not (is_whole or cells) else form
    if list(paths) == list(captures) and len(paths) == 1:
        _show_one(next(reports), form)
    else:
        _show_many(reports, form)


def _judged(paths: Sequence[str], noise: float, dask: str | None) -> Iterator[Report | HprofError]:
    if dask is None:
        from profiler.report.build import judge

        return (judge(path, noise) for path in paths)
    from profiler.cluster import judge_all

    return judge_all(dask, paths, noise)


def _show_one(report: Report | HprofError, form: str) -> None:
    if isinstance(report, Exception):
        raise report
    _print(report, form)


def _show_many(reports: Iterable[Report | HprofError], form: str) -> None:
    """One after the other, as they come; those that cannot be read are said at the end, with exit code 2."""
    found: list[Report] = []
    problems: list[HprofError] = []
    for report in reports:
        if isinstance(report, Exception):
            problems.append(report)
        elif form == "json":
            found.append(report)
        else:
            if form == "answer":
                say(f"{report.capture}:")
            _print(report, form)
            say()
    if form == "json":
        from profiler.plain_text import json_text
        from profiler.report.report import reports_as_json

        say(json_text(reports_as_json(found, [str(problem) for problem in problems])))
    if problems:
        for problem in problems:
            say(f"hprof: {problem}", err=True)
        click.get_current_context().exit(2)


def _print(report: Report, form: str) -> None:
    if form == "json":
        from profiler.plain_text import json_text

        say(json_text(report.to_json()))
    elif form == "md":
        from profiler.report.markdown import render_markdown

        say(render_markdown(report), nl=False)
    else:
        from profiler.report.terminal import print_answer, print_report

        (print_answer if form == "answer" else print_report)(report, console())


def show_report(path: str, *, as_json: bool, is_whole: bool = False) -> None:
    """Say where the capture is, then judge it: JSON on stdout alone, or what `hprof report` shows."""
    from profiler.capture import Capture
    from profiler.report.build import build_report

    say(f"Wrote {path}", err=as_json)
    _print(build_report(Capture.open(path)), "json" if as_json else "terminal" if is_whole else "answer")
