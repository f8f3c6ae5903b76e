"""`hprof compare A B`: hold two captures against each other; can fail a build."""

from __future__ import annotations

import click

from executor.errors import HprofError
from profiler.cli.completion import complete_captures
from profiler.cli.options import WholeRange, json_option, named, noise_option, refuse_other_format
from profiler.cli.printing import console, say


@click.command()
@click.argument("a", callback=named, shell_complete=complete_captures)
@click.argument("b", callback=named, shell_complete=complete_captures)
@click.option("--fail-on", multiple=True, metavar="LIMIT", help='Exit 1 beyond it, e.g. "ttft>+5%"; repeatable.')
@click.option("--allow-inconclusive", is_flag=True, help="Let limits that cannot be decided pass.")
@click.option("--all", "show_all", is_flag=True, help="Show all changes, not the answer alone.")
@click.option("--top", type=WholeRange(1), help="Show so many changes, the largest first.")
@click.option("--format", "form", type=click.Choice(["table", "md", "json"]), default="table", help="How to show it.")
@json_option
@noise_option
def command(
    a: str,
    b: str,
    fail_on: tuple[str, ...],
    top: int | None,
    form: str,
    noise: float,
    *,
    allow_inconclusive: bool,
    show_all: bool,
    as_json: bool,
) -> int:
    """Compare capture B with A: TTFT, prefill and decode with verdicts, why, and what differs.

    A and B are captures, or parts of one: CAPTURE#ARM,ub=512 (sizes p, n, ub, d). Limits are decided by the 95 %
    interval: wholly beyond fails, wholly within passes, else inconclusive, which fails too.

    \b
    hprof compare traces/before traces/after --fail-on "ttft>+5%" --fail-on "decode<-3%"
    hprof compare traces/run#off traces/run#on --format md > comment.md
    """
    refuse_other_format(as_json=as_json, form=form)
    if top is not None and show_all:
        raise HprofError(f"--top {top} and --all contradict each other: give one of them.")
    from profiler.compare import compare_captures

    result = compare_captures(a, b, noise=noise, fail_on=fail_on)
    shown = len(result.changes) if show_all else top
    if as_json or form == "json":
        from profiler.compare.renderers import render_json

        say(render_json(result))
    elif form == "md":
        from profiler.compare.renderers import render_comment

        say(render_comment(result, shown), nl=False)
    else:
        from profiler.compare.renderers import print_comparison

        print_comparison(result, console(), shown, how_to_see_more="--all")
    return 1 if result.failed(allow_inconclusive=allow_inconclusive) else 0
