"""`hprof import`: turn other tools' traces into a capture."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from executor.errors import HprofError
from profiler.cli.options import force_option, json_option, output_option, whole_option
from profiler.cli.printing import console
from profiler.cli.report import show_report
from profiler.importers.base import FORMATS

if TYPE_CHECKING:
    from profiler.importers.cut import ArmRange


def _arm_files(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Each NAME=FILE in two."""
    parts = [value.partition("=") for value in values]
    for value, (arm, equals, file) in zip(values, parts, strict=True):
        if not (arm and equals and file):
            raise click.BadParameter(f"{value!r} is not NAME=FILE, such as --arm on=on.sqlite", context, parameter)
    return [(arm, Path(file)) for arm, _, file in parts]


def _ranges(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[ArmRange]:
    """Each NAME=FROM:TO, on the trace's clock."""
    if not values:
        return []
    from executor.units import parse_ns
    from profiler.importers.cut import ArmRange

    found = []
    for value in values:
        arm, equals, span = value.rpartition("=")
        begin, colon, end = span.partition(":")
        if not (arm and equals and begin and colon and end):
            raise click.BadParameter(
                f"{value!r} is not NAME=FROM:TO, such as --range off=0ms:188ms", context, parameter
            )
        found.append(ArmRange(arm, parse_ns(begin, "--range"), parse_ns(end, "--range")))
    return found


@click.command("import")
@click.argument("files", nargs=-1, metavar="[FILE_OR_DIR]...", type=click.Path(path_type=Path))
@click.option("--kind", type=click.Choice(tuple(FORMATS)), help="What the files are, where that cannot be detected.")
@click.option(
    "--arm", "arms", metavar="NAME=FILE", multiple=True, callback=_arm_files, help="One arm's trace; repeatable."
)
@click.option(
    "--range",
    "ranges",
    metavar="NAME=FROM:TO",
    multiple=True,
    callback=_ranges,
    help="A stretch of the one trace, or imported capture, that is an arm, as its timeline counts; repeatable.",
)
@click.option("--arm-by", metavar="FIELD", multiple=True, help="A llama-bench field that sets arms apart; repeatable.")
@output_option
@force_option
@whole_option
@json_option
def command(
    files: tuple[Path, ...],
    kind: str | None,
    arms: list[tuple[str, Path]],
    ranges: list[ArmRange],
    arm_by: tuple[str, ...],
    output: str | None,
    *,
    force: bool,
    is_whole: bool,
    as_json: bool,
) -> None:
    """Turn traces of Nsight Systems, torch.profiler or llama-bench, or spools of hprof record, into a capture.

    \b
    hprof import report.sqlite                         one trace
    hprof import --arm off=off.sqlite --arm on=on.sqlite -o traces/ab
    hprof import trace.json.gz --kind kineto -o traces/torch
    hprof import both.sqlite --range off=0ms:188ms --range on=188ms:345ms
    """
    if not files and not arms:
        raise click.UsageError("give a trace file or folder, or arms as --arm NAME=FILE.")
    for name, path in arms:
        if not path.exists():
            raise HprofError(
                f"--arm {name}={path}: there is no file {path}; an arm is a trace file of its own, or a stretch of one "
                f"trace: hprof import FILE --range {name}=0ms:188ms."
            )
    if ranges and (len(files) != 1 or arms):
        raise HprofError("--range cuts one trace into arms: give one trace file, and no --arm.")
    from profiler.cutting import cut_capture
    from profiler.importers import ImportOptions, TraceInput, import_files
    from profiler.importers.cut import cut_into_arms
    from profiler.manifest import MANIFEST_NAME

    with console(stderr=True).status("Reading the trace"):
        if ranges and (files[0] / MANIFEST_NAME).is_file():
            written = cut_capture(files[0], ranges, output, force=force, argv=sys.argv)
        else:
            cut = partial(cut_into_arms, ranges=ranges) if ranges else None
            traces = [*(TraceInput(file, cut=cut) for file in files), *(TraceInput(file, arm) for arm, file in arms)]
            options = ImportOptions(arm_by=arm_by)
            written = import_files(traces, output, kind=kind, options=options, force=force, argv=sys.argv)
    show_report(written, as_json=as_json, is_whole=is_whole)
