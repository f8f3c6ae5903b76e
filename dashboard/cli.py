"""`hprof dashboard`: open the dashboard in a browser."""

from __future__ import annotations

import click

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_DEFAULT_PORT = 8501


@click.command()
@click.argument("traces", default="traces", metavar="[TRACES]")
@click.option("--port", type=click.IntRange(1, 65535), help="Default: 8501, or the next free one.")
@click.option("--host", default="127.0.0.1", help="The address to listen on.")
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
def command(traces: str, port: int | None, host: str, *, no_browser: bool) -> None:
    """Open the dashboard in a browser.

    TRACES is the folder (or fsspec URL) that holds the captures, or one capture.

    \b
    hprof dashboard
    hprof dashboard traces/example --port 9000 --no-browser
    """
    import os
    import sys
    from pathlib import Path

    from executor.errors import HprofError

    if "://" not in traces and not Path(traces).is_dir():
        raise HprofError(f"{traces} is no folder; name the one that holds the captures (hprof run makes traces/).")
    if host not in _LOOPBACK:
        click.echo(
            f"hprof: listening on {host}: everybody who can reach this machine there can read the captures in "
            f"{traces} and add to them, without a password.",
            err=True,
        )
    port = port or free_port(host)
    click.echo(f"hprof: the dashboard is at http://{_shown(host)}:{port} (Ctrl+C ends it)", err=True)
    root = Path(__file__).resolve().parents[1]
    # The package's own folder comes first on the path of `streamlit run`; its parent holds the packages.
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    arguments = [sys.executable, *server_arguments(traces, host, port, opens_browser=not no_browser)]
    sys.stdout.flush()
    os.execve(sys.executable, arguments, environment)


def server_arguments(traces: str, host: str, port: int, *, opens_browser: bool) -> list[str]:
    """What to run Streamlit with: everything that must hold whatever configuration the user has."""
    from pathlib import Path

    options = {
        "server.address": host,
        "server.port": port,
        "server.headless": str(not opens_browser).lower(),
        "browser.serverAddress": _shown(host),
        "browser.gatherUsageStats": "false",
        "server.fileWatcherType": "none",
    }
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    app = Path(__file__).with_name("app.py")
    return ["-m", "streamlit", "run", str(app), *flags, "--", "--traces", traces]


def free_port(host: str, first: int = _DEFAULT_PORT) -> int:
    """The first port from `first` on that nobody listens on; any free one if the next fifty are taken."""
    import socket

    for port in (*range(first, first + 50), 0):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return first


def _shown(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host
