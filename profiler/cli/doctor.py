"""`hprof doctor [DIR]`: what of hprof works on this machine, and what to do where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from profiler import DEFAULT_TRACES
from profiler.cli.options import json_option, named
from profiler.cli.printing import console, say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from profiler.doctor import HealthCheck

_STYLES: Final = {"ok": "green", "absent": "dim", "poor": "yellow", "broken": "red"}


@click.command()
@click.argument("folder", metavar="[DIR]", default=DEFAULT_TRACES, callback=named)
@json_option
def command(folder: str, as_json: bool) -> int:
    """Look at this machine: GPUs, pinned memory, the link's speed, CUPTI, nsys, load, memory, disk, hidden packages.

    DIR is where captures go (default: traces). Exit code 1 where something stops hprof from working.

    \b
    hprof doctor
    """
    from profiler.doctor import examine

    checks = examine(folder)
    found = list(checks) if as_json else list(_shown(checks))
    if as_json:
        from dataclasses import asdict

        from profiler.plain_text import json_text

        say(json_text({"schema": 1, "checks": [asdict(check) for check in found]}))
    return 1 if any(check.state == "broken" for check in found) else 0


def _shown(checks: Iterable[HealthCheck]) -> Iterable[HealthCheck]:
    """Each check on the screen as soon as it is done."""
    from rich.text import Text

    from executor.errors import plain

    screen = console()
    for check in checks:
        line = Text.assemble((f"{check.state:7}", _STYLES[check.state]), (plain(check.name), "bold"), ": ")
        line.append(plain(check.fact if check.advice is None else f"{check.fact} To do: {check.advice}"))
        screen.print(line)
        yield check
