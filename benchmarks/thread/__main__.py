"""Measure and draw the tables of the discussion.

\b
    python -m benchmarks.thread measure a b c d e --captures traces/thread     # on a machine with a GPU
    python -m benchmarks.thread draw a b c d e --captures traces/thread        # tables and plots into docs/
    python -m benchmarks.thread measure a b c d --changes "--device sim"       # the same commands on a laptop

`measure` runs the commands that `python -m benchmarks.thread commands` prints, one capture each.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.thread.load_modes import MODES, MODES_FILE, argv, load_table
from benchmarks.thread.load_modes import measure as measure_mode
from benchmarks.thread.tables import TABLES
from executor.errors import HprofError

ROOT = Path(__file__).resolve().parents[2]
_MAX_LINES = 20  # of a log
_letters = click.argument("letters", nargs=-1, type=click.Choice(list(TABLES)))
_captures = click.option("--captures", type=click.Path(path_type=Path), default=ROOT / "traces" / "thread")


@click.group(help=__doc__)
def main() -> None:
    """The group."""


@main.command()
def commands() -> None:
    """Print every command."""
    for letter, table in TABLES.items():
        click.echo(f"# ({letter}) {table.title}")
        for run in table.runs:
            click.echo(shlex.join(run.argv(f"traces/thread/{run.name}")))
        if letter == "e":
            for number, mode in enumerate(MODES):
                drop = "  # the file dropped from the page cache before" if mode.cold else ""
                click.echo(shlex.join(argv("traces/thread/e-dense.gguf", mode, f"traces/thread/e-{number:02d}")) + drop)


@main.command()
@_letters
@_captures
@click.option("--only", multiple=True, help="Only the capture of this name.")
@click.option("--model", type=click.Path(exists=True, path_type=Path), help="(e): a GGUF file; made when left out.")
@click.option("--changes", default="", help="Flags added to each command, e.g. '--layers 4 -r 2'.")
def measure(letters: tuple[str, ...], captures: Path, only: tuple[str, ...], model: Path | None, changes: str) -> None:
    """Run the commands of these tables (all when none is named); exit 1 if any failed."""
    captures.mkdir(parents=True, exist_ok=True)
    failed = []
    for letter in letters or TABLES:
        for run in TABLES[letter].runs:
            if only and run.name not in only:
                continue
            if not _run(run.argv(str(captures / run.name), shlex.split(changes)), captures / f"{run.name}.log"):
                failed.append(run.name)
        if letter == "e" and not only:
            _load_modes(captures, model, shlex.split(changes))
    if failed:
        raise click.ClickException(f"failed: {', '.join(failed)}")


def _run(argv: Sequence[str], log: Path) -> bool:
    start = time.perf_counter()
    click.echo(f"$ {shlex.join(argv)}")
    with log.open("w") as stream:
        done = subprocess.run(
            [sys.executable, "-m", *argv], cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, check=False
        )
    click.echo(f"  exit {done.returncode}, {time.perf_counter() - start:.0f} s; {log} ends with:")
    click.echo(textwrap.indent(_last_paragraph(log.read_text()), "  "))
    return done.returncode == 0


def _last_paragraph(text: str) -> str:
    """A report's closing one, or an error; of a long one the last lines."""
    lines = [line.rstrip() for line in text.rstrip().splitlines()]
    return "\n".join("\n".join(lines).rpartition("\n\n")[2].splitlines()[-_MAX_LINES:])


def _load_modes(captures: Path, model: Path | None, changes: list[str]) -> None:
    from benchmarks.gpu.gguf_file import dense_shape, write_gguf

    made = model or write_gguf(dense_shape(), "Q4_0", captures / "e-dense.gguf")
    rows = [measure_mode(made, mode, captures / f"e-{number:02d}", changes) for number, mode in enumerate(MODES)]
    (captures / MODES_FILE).write_text(json.dumps(rows, indent=1) + "\n")
    click.echo(load_table(rows))


@main.command()
@_letters
@_captures
@click.option("--docs", type=click.Path(path_type=Path), default=ROOT / "docs")
def draw(letters: tuple[str, ...], captures: Path, docs: Path) -> None:
    """Tables and plots of what was measured, between the marks of thread-tables.md."""
    from benchmarks.thread.draw import draw_table

    for letter in letters or TABLES:
        try:
            click.echo(draw_table(letter, captures, docs))
        except HprofError as error:
            raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
