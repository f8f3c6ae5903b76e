"""`hprof check CAPTURE`: prove the order of what a run issued, or name what breaks it."""

from __future__ import annotations

import click

from profiler.cli.completion import complete_captures
from profiler.cli.options import json_option
from profiler.cli.printing import say


@click.command()
@click.argument("capture", shell_complete=complete_captures)
@json_option
def command(capture: str, *, as_json: bool) -> int:
    """Prove that no step of a run can read bytes before they are there, or other bytes than it needs.

    CAPTURE was made with `hprof run --record-ordering`. Two checks: that every two operations on the same bytes are
    ordered by streams, events and the host, on any schedule; and that what was copied there last is what the step
    expects. Exit code 1 where one of them finds something.

    \b
    hprof run -m tiny-moe --record-ordering -o traces/ordered
    hprof check traces/ordered
    """
    from profiler.capture import Capture
    from profiler.ordering.check import check_capture
    from profiler.plain_text import printable

    result = check_capture(Capture.open(capture))
    if as_json:
        from profiler.plain_text import json_text

        say(json_text(result.to_json()))
    else:
        for line in result.lines():
            say(printable(line))
    return 0 if result.is_clean else 1
