"""`hprof dashboard`: open the dashboard in a browser."""

from __future__ import annotations

import click

from profiler import DEFAULT_TRACES
from profiler.cli.options import WholeRange, named

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_DEFAULT_PORT = 8501
OPENS_BROWSER = "--open-browser"  # the server's own flag: Streamlit opens one only where it is not headless


@click.command()
@click.argument("traces", default=DEFAULT_TRACES, metavar="[TRACES]", callback=named)
@click.option("--port", type=WholeRange(1, 65535), help="Default: 8501, or the next free one.")
@click.option("--host", default="127.0.0.1", help="The address to listen on.")
@click.option(
    "--allow-host", "names", metavar="NAME", multiple=True, help="A name that browsers may call it by; repeatable."
)
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
def command(traces: str, port: int | None, host: str, names: tuple[str, ...], *, no_browser: bool) -> None:
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
    from profiler.cli.printing import say

    if "://" in traces:
        from profiler.storage.address import opened

        opened(traces)
    else:
        if not os.path.isdir(traces):  # noqa: PTH112 - unlike Path, never raises, such as for a name that is too long
            raise HprofError(f"{traces} is no folder; name the one that holds the captures (hprof run makes traces/).")
        traces = os.path.abspath(traces)  # noqa: PTH100 - Path resolves links, and the link's name is the folder's
    if port is None:
        port = free_port(host)
    else:
        check_free(host, port)
    if host not in _LOOPBACK:
        say(
            f"hprof: listening on {host}: everybody who can reach this machine there can read the captures in "
            f"{traces} and add to them, without a password.",
            err=True,
        )
    say(f"hprof: the dashboard is at http://{_shown(host)}:{port} (Ctrl+C ends it)", err=True)
    here = Path(__file__).parent
    # The package's own folder comes first on the path of `streamlit run`; its parent holds the packages.
    paths = [str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    arguments = server_arguments(traces, host, port, opens_browser=not no_browser, names=names)
    # Streamlit obeys a .streamlit/config.toml in the working folder, and Python imports what lies there: not ours.
    os.chdir(here)
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *arguments], environment)


def server_arguments(
    traces: str, host: str, port: int, *, opens_browser: bool, names: tuple[str, ...] = ()
) -> list[str]:
    """What to run Streamlit with: everything that must hold whatever configuration the user has."""
    from pathlib import Path

    origin = f"http://{_shown(host)}:{port}"
    options = {
        "server.address": host,
        "server.port": port,
        "server.headless": "true",  # else it offers every visitor to write instructions for coding agents to this disk
        "server.enableCORS": "true",
        "server.enableXsrfProtection": "true",
        "server.corsAllowedOrigins": origin,
        "server.enableStaticServing": "false",
        "server.fileWatcherType": "none",
        "server.showEmailPrompt": "false",  # a user's first start would wait for an address, and end without a terminal
        "browser.serverAddress": _shown(host),
        "browser.gatherUsageStats": "false",
        "logger.hideWelcomeMessage": "true",  # `hprof: the dashboard is at` stands there already
        "client.allowedOrigins": origin,
    }
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    own = ["--traces", traces, *(word for name in (host, *names) for word in ("--allow-host", name))]
    if opens_browser:
        own.append(OPENS_BROWSER)
    return ["-P", "-m", "dashboard.serve", "run", str(Path(__file__).with_name("server.py")), *flags, "--", *own]


def check_free(host: str, port: int) -> None:
    """Raise HprofError where nobody can listen at this port of this address."""
    import os

    from executor.errors import HprofError

    if (error := _bind(host, port)) is not None:
        raise HprofError(
            f"--host {host} --port {port}: {error.strerror or os.strerror(error.errno or 0)}; leave --port out to take "
            "a free one, and give --host an address of this machine."
        )


def free_port(host: str, first: int = _DEFAULT_PORT) -> int:
    """The first port from `first` on that nobody listens on, of the next fifty.

    Raises HprofError where none is, or where the host is no address of this machine.
    """
    for port in range(first, first + 50):
        if _bind(host, port) is None:
            return port
    check_free(host, first)
    return first


def _bind(host: str, port: int) -> OSError | None:
    """What stands in the way of listening there."""
    import socket

    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except UnicodeError:
        return OSError(0, "no name of a machine")
    except OSError as error:
        return error
    return None


def _shown(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
