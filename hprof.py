"""The public face of hprof: `import hprof; hprof.open(path)`, `python -m hprof`, and the `hprof` command."""

from __future__ import annotations

import errno
import importlib
import io
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from os import PathLike

    from profiler.opened import OpenedCapture

__version__ = "0.1.0"
__all__ = ["main", "open"]

# command -> (module that holds it as `command`, one line for `hprof --help`); modules import only when called
_COMMANDS = {
    "run": ("profiler.cli.run", "Run A/B passes of a hybrid model and write a capture."),
    "report": ("profiler.cli.report", "Judge a capture: arms side by side, intervals, verdicts."),
    "compare": ("profiler.cli.compare", "Compare two captures or cells; can fail a build."),
    "import": ("profiler.cli.import_", "Turn an nsys, torch.profiler or llama-bench file into a capture."),
    "export": ("profiler.cli.export", "Write a capture as Chrome JSON, CSV, parquet or HTML."),
    "dashboard": ("dashboard.cli", "Open the dashboard in a browser."),
    "models": ("profiler.cli.models", "List the presets, or describe a model."),
    "list": ("profiler.cli.list_", "List the captures in a folder."),
}
_PRINTING_FAILED = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # what becomes of files is told by HprofError


class _LazyGroup(click.Group):
    """Imports a command's module when it is called, so that `hprof --help` loads click alone."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = importlib.import_module(entry[0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


@click.group(
    cls=_LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        "auto_envvar_prefix": "HPROF",
    },
)
@click.version_option(__version__, prog_name="hprof")
def cli() -> None:
    """Measure, simulate and explain what prefetching offloaded weights does to a language model."""


def _shadowed() -> str | None:
    for name in ("executor", "profiler"):
        module = importlib.import_module(name)
        if getattr(module, "HPROF_PACKAGE", None) != f"hprof.{name}":
            return (
                f"hprof: the package '{name}' at {module.__file__} is another project's and hides hprof's own; "
                "install hprof into an environment of its own (pipx install hprof, or a fresh venv)."
            )
    return None


def _print_any_text() -> None:
    """A terminal whose encoding lacks a character gets `?` for it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def main(args: list[str] | None = None) -> int:
    """Run the command line; return the exit code (0 fine, 1 a check failed, 2 wrong usage or bad input)."""
    if (problem := _shadowed()) is not None:
        click.echo(problem, err=True)
        return 2
    from executor.errors import HprofError

    _print_any_text()
    try:
        result = cli.main(args=args, prog_name="hprof", standalone_mode=False)
    except HprofError as error:
        from executor.units import plain

        click.echo(f"hprof: {plain(str(error))}", err=True)  # it may quote a file, which must not steer the terminal
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except OSError as error:
        if error.filename is not None or error.errno not in _PRINTING_FAILED:
            raise
        click.echo(f"hprof: cannot print: {error.strerror}; print somewhere else.", err=True)
        return 2
    except (click.Abort, KeyboardInterrupt) as abort:
        from profiler.running.termination import exit_code_of

        click.echo("hprof: interrupted", err=True)
        return exit_code_of(abort.__cause__ or abort)
    return result if isinstance(result, int) else 0


def open(path: str | PathLike[str]) -> OpenedCapture:  # noqa: A001 - `hprof.open` is the name users expect
    """Open the capture at `path` (a folder or any fsspec URL); tables and metrics come as pandas frames."""
    from profiler.opened import OpenedCapture

    return OpenedCapture.open(path)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module 'hprof' has no attribute {name!r}")


if __name__ == "__main__":
    sys.exit(main())
