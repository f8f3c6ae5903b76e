"""What `hprof dashboard` becomes: Streamlit's own command line, but that Ctrl-C ends it with hprof's exit code.

Streamlit itself would say "Aborted!" and end with 1, which is a check's that failed.
"""

from __future__ import annotations

import sys

import click
from streamlit.web.cli import main

from profiler.running.termination import INTERRUPTED


def serve() -> int:
    """Serve until the end; the exit code. SIGTERM ends the process by itself, and a shell tells that as 143."""
    try:
        main(prog_name="streamlit", standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        click.echo("hprof: interrupted", err=True)
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(serve())
