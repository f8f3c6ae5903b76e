"""`hprof import`: turn other tools' traces into a capture."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from profiler.cli.options import force_option, json_option, output_option
from profiler.cli.printing import console
from profiler.cli.report import show_report
from profiler.importers.base import FORMATS


def _arm_files(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Each NAME=FILE in two."""
    parts = [value.partition("=") for value in values]
    for value, (arm, equals, file) in zip(values, parts, strict=True):
        if not (arm and equals and file):
            raise click.BadParameter(f"{value!r} is not NAME=FILE, such as --arm on=on.sqlite", context, parameter)
    return [(arm, Path(file)) for arm, _, file in parts]


@click.command("import")
@click.argument("files", nargs=-1, metavar="[FILE_OR_DIR]...", type=click.Path(path_type=Path))
@click.option("--kind", type=click.Choice(tuple(FORMATS)), help="What the files are, where that cannot be detected.")
@click.option(
    "--arm", "arms", metavar="NAME=FILE", multiple=True, callback=_arm_files, help="One arm's trace; repeatable."
)
@click.option("--arm-by", metavar="FIELD", multiple=True, help="A llama-bench field that sets arms apart; repeatable.")
@output_option
@force_option
@json_option
def command(
    files: tuple[Path, ...],
    kind: str | None,
    arms: list[tuple[str, Path]],
    arm_by: tuple[str, ...],
    output: str | None,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Turn traces of Nsight Systems, torch.profiler or llama-bench, or spools of hprof record, into a capture.

    \b
    hprof import report.sqlite                         one trace
    hprof import --arm off=off.sqlite --arm on=on.sqlite -o traces/ab
    hprof import trace.json.gz --kind kineto -o traces/torch
    """
    if not files and not arms:
        raise click.UsageError("give a trace file or folder, or arms as --arm NAME=FILE.")
    from profiler.importers import import_files

    with console(stderr=True).status("Reading the trace"):
        path = import_files(files, output, kind=kind, arms=arms, arm_by=arm_by, force=force, argv=sys.argv)
    show_report(path, as_json=as_json, is_whole=True)
