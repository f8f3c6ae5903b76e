"""The command line as a whole: which commands there are, and what becomes of errors. Loads click alone; a command's
module is imported when it is called.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

# command -> (module that holds it as `command`, one line for `hprof --help`)
COMMANDS = {
    "run": ("profiler.cli.run", "Run A/B passes of a hybrid model and write a capture."),
    "record": ("profiler.cli.record", "Record what any program does on CUDA devices, as a capture."),
    "report": ("profiler.cli.report", "Judge a capture: arms side by side, intervals, verdicts."),
    "probe": ("profiler.cli.probe", "Measure this machine once, so that predictions are its own."),
    "predict": ("profiler.cli.predict", "Predict what a run would measure, and how far that is from a capture."),
    "advise": ("profiler.cli.advise", "Search for what to set under a budget of device memory."),
    "check": ("profiler.cli.check", "Prove the order of a run's copies and steps, or find what breaks it."),
    "compare": ("profiler.cli.compare", "Compare two captures or cells; can fail a build."),
    "import": ("profiler.cli.import_", "Turn an nsys, torch.profiler or llama-bench file, or a spool, into a capture."),
    "export": ("profiler.cli.export", "Write a capture as Chrome JSON, CSV, parquet or HTML."),
    "dashboard": ("dashboard.cli", "Open the dashboard in a browser."),
    "doctor": ("profiler.cli.doctor", "Look at this machine: what of hprof works here, and what to do."),
    "models": ("profiler.cli.models", "List the presets, or describe a model."),
    "list": ("profiler.cli.list_", "List the captures in a folder."),
}
_MOST_OF_A_NAME = 120  # characters of a path in an error
_PRINTING_FAILED = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # what becomes of files is told by HprofError
_READER_IS_GONE = 141  # what a shell says of a program that SIGPIPE ended, as `| head -1` ends most
_NO_MEMORY = ("can't start new thread", "can't allocate memory", "failed to map segment", "std::bad_alloc")


class _ReaderIsGoneError(Exception):
    """Nobody reads the output any more."""


@contextmanager
def _not_by_click() -> Iterator[None]:
    """A BrokenPipeError inside is kept from click, which would end with 1, as a failed check does."""
    try:
        yield
    except BrokenPipeError as error:
        raise _ReaderIsGoneError from error


class _LazyGroup(click.Group):
    """Imports a command's module when it is called."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _not_by_click():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        from profiler.running.termination import interrupted_between_imports

        with _not_by_click(), interrupted_between_imports():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _ = entry
        _refuse_foreign(module.partition(".")[0])
        command: click.Command = importlib.import_module(module).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        from executor.version import __version__

        click.echo(f"hprof, version {__version__}")
        ctx.exit()


@click.group(
    cls=_LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        "auto_envvar_prefix": "HPROF",
    },
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Measure, simulate and explain what prefetching offloaded weights does to a language model."""


def main(args: list[str] | None = None) -> int:
    """Run the command line; return the exit code (0 fine, 1 a check failed, 2 wrong usage or bad input)."""
    open_standard_streams()
    try:
        return _run(args)
    except (BrokenPipeError, _ReaderIsGoneError):  # the former: of an error's own sentence
        return _without_reader()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich ends so, with 1
            return _without_reader()
        raise


def _run(args: list[str] | None) -> int:
    if (problem := foreign_package()) is not None:
        click.echo(f"hprof: {problem}", err=True)
        return 2
    from executor.errors import HprofError

    print_any_text()
    if "_HPROF_COMPLETE" in os.environ:  # a shell asks, and waits
        from profiler.cli.completion import complete_as_shells_do

        complete_as_shells_do()
    try:
        result = cli.main(args=args, prog_name="hprof", standalone_mode=False)
    except HprofError as error:
        click.echo(f"hprof: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        _show_usage_error(error)
        return 2
    except (click.Abort, KeyboardInterrupt) as abort:
        return _interrupted(abort.__cause__ or abort)
    except (MemoryError, OSError, ImportError, RuntimeError) as error:
        return _refused_by_the_system(error)
    return result if isinstance(result, int) else 0


def _without_reader() -> int:
    """The exit code where who read the output has gone. What is still to be written there goes nowhere."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        except AttributeError:  # None, as it was closed from the start
            continue
    return _READER_IS_GONE


def _interrupted(interrupt: BaseException) -> int:
    from profiler.running.termination import TERMINATED, exit_code_of

    code = exit_code_of(interrupt)
    click.echo(f"hprof: {'terminated' if code == TERMINATED else 'interrupted'}", err=True)
    return code


def _refused_by_the_system(error: MemoryError | OSError | ImportError | RuntimeError) -> int:
    """The exit code after a sentence about memory, a file or a signal; raises what is none of these: hprof's fault."""
    if _is_out_of_memory(error):
        click.echo("hprof: there is not enough memory for this; close something else, or raise the limit.", err=True)
        return 2
    if isinstance(error, ImportError) and isinstance(error.__cause__, KeyboardInterrupt):
        return _interrupted(error.__cause__)  # C++ that was being imported makes an ImportError of Ctrl-C
    if isinstance(error, OSError) and (error.filename is not None or error.errno in _PRINTING_FAILED):
        click.echo(f"hprof: {_told(error)}", err=True)
        return 2
    raise error


def _is_out_of_memory(error: Exception) -> bool:
    """Whether there was none for a thread, a module or numbers, each of which says so in its own words."""
    by_number = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or by_number or any(words in str(error) for words in _NO_MEMORY)


def _show_usage_error(error: click.ClickException) -> None:
    """As click shows it, but that what it quotes of the command line steers no terminal."""
    from profiler.plain_text import printable

    shown = io.StringIO()
    error.show(shown)
    click.echo(printable(shown.getvalue()), err=True, nl=False)


def _told(error: OSError) -> str:
    """What the system said of a file that no command told of itself, such as a name that is too long."""
    if error.filename is None:
        return f"cannot print: {error.strerror}; print somewhere else."
    from executor.errors import plain

    name = plain(os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename))
    shown = name if len(name) <= _MOST_OF_A_NAME else f"{name[:_MOST_OF_A_NAME]}…"
    return f"{shown}: {error.strerror}; give another path."


def _refuse_foreign(package: str) -> None:
    if (problem := foreign_package(package)) is not None:
        from executor.errors import HprofError

        raise HprofError(problem)


def foreign_package(*names: str) -> str | None:
    """A sentence about the first package that is another project's and hides hprof's own; None where none is.

    `dashboard` is looked at by the command that needs it alone: many projects have a package of that name.
    """
    for name in names or ("executor", "profiler"):
        module = importlib.import_module(name)
        if getattr(module, "HPROF_PACKAGE", None) != f"hprof.{name}":
            where = module.__file__ or next(iter(module.__path__))  # a folder without __init__.py has no file
            return (
                f"the package '{name}' at {where} is another project's and hides hprof's own; "
                "install hprof into an environment of its own (pipx install hprof, or a fresh venv)."
            )
    return None


def open_standard_streams() -> None:
    """Open the null device where stdin, stdout or stderr is closed: the next file would take that number, and what any
    library prints would be written into a capture."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free


def print_any_text() -> None:
    """Let a terminal whose encoding lacks a character print `?` for it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
