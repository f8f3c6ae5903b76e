"""`hprof import`: turn other tools' traces into a capture."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

_KINDS = ("nsys", "nsys-stats", "kineto", "llama-bench")


class _ArmFile(click.ParamType):
    """`NAME=FILE`."""

    name = "NAME=FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Path]:
        arm, equals, path = str(value).partition("=")
        if not (arm and equals and path):
            self.fail(f"{value!r} is not NAME=FILE, such as --arm on=on.sqlite", param, ctx)
        return arm, Path(path)


@click.command("import")
@click.argument("files", nargs=-1, metavar="[FILE_OR_DIR]...", type=click.Path(path_type=Path))
@click.option("--kind", type=click.Choice(_KINDS), help="What the files are, where that cannot be detected.")
@click.option("--arm", "arms", type=_ArmFile(), multiple=True, help="A trace that is one arm; repeatable.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The capture's folder.")
@click.option("--force", is_flag=True, help="Replace a capture that is already there.")
@click.option("--json", "as_json", is_flag=True, help="Print the capture's report as JSON.")
def command(
    files: tuple[Path, ...],
    kind: Any,
    arms: tuple[tuple[str, Path], ...],
    output: Path | None,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Turn traces of Nsight Systems, torch.profiler or llama-bench into a capture.

    \b
    hprof import report.sqlite                         one trace
    hprof import --arm off=off.sqlite --arm on=on.sqlite -o traces/ab
    hprof import trace.json.gz --kind kineto -o traces/torch
    """
    from profiler.importers import import_files

    if not files and not arms:
        raise click.UsageError("give a trace file or folder, or arms as --arm NAME=FILE.")
    path = import_files(files, output, kind=kind, arms=arms, force=force, argv=sys.argv)
    click.echo(f"Wrote {path}", err=as_json)
    _show(path, as_json=as_json)
