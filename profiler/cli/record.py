"""`hprof record -- COMMAND`: run any program, and make a capture of what it does on CUDA devices."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from executor.errors import HprofError
from profiler.cli.options import FiniteRange, force_option, json_option, output_option
from profiler.cli.printing import say

if TYPE_CHECKING:
    from profiler.recording.launch import Finished
    from profiler.recording.session import Graphs, Recording


_NOTHING: Final = (
    "hprof: no process started CUDA or used NVTX (or none that --process chooses): nothing was recorded; "
    "`hprof doctor` says whether there is a GPU here; without one `hprof run --engine command` times programs, and "
    "hprof.ab and hprof.record take PyTorch code."
)


def _variables(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Each K=V in two."""
    parts = [value.partition("=") for value in values]
    for value, (name, equals, _) in zip(values, parts, strict=True):
        if not (name and equals):
            raise click.BadParameter(f"{value!r} is not K=V, such as --env CUDA_VISIBLE_DEVICES=0", context, parameter)
    return {name: value for name, _, value in parts}


def _size(context: click.Context, parameter: click.Parameter, value: str) -> int:
    from executor.units import parse_bytes

    if not (n_bytes := parse_bytes(value, "--max-bytes")):
        raise click.BadParameter("0 leaves nothing to write; give a size such as 500MiB", context, parameter)
    return n_bytes


def _range_name(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    """A name that some range may have."""
    if name is not None and not name.strip():
        raise click.BadParameter("a range's name is not empty; give one such as measured", context, parameter)
    return name


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.argument("program", nargs=-1, metavar="-- COMMAND...", type=click.UNPROCESSED)
@output_option
@force_option
@json_option
@click.option("--for", "for_s", type=FiniteRange(0, min_open=True), metavar="SECONDS", help="Stop after so long.")
@click.option("--after", "after_s", type=FiniteRange(0), metavar="SECONDS", help="Begin so long after the start.")
@click.option(
    "--only-range", metavar="NAME", callback=_range_name, help="Record inside NVTX ranges of this name alone."
)
@click.option(
    "--until-range",
    metavar="NAME",
    callback=_range_name,
    help="Stop for good where an NVTX range of this name begins.",
)
@click.option(
    "--graphs",
    type=click.Choice(["auto", "graph", "node"]),
    default="auto",
    help="CUDA graphs: a record a launch, or one a node inside, which costs time in each. auto: a launch.",
)
@click.option(
    "--without",
    type=click.Choice(["calls", "waits", "memory"]),
    multiple=True,
    help="Leave out what costs time: calls (then ranges find no work), waits, allocations; repeatable.",
)
@click.option(
    "--max-bytes",
    metavar="SIZE",
    default="512MiB",
    callback=_size,
    help="Stop when so much is written, of all processes.",
)
@click.option("--env", "variables", metavar="K=V", multiple=True, callback=_variables, help="A variable; repeatable.")
@click.option("--process", metavar="REGEX", help="Record processes whose command line matches (grep -E).")
def command(
    program: tuple[str, ...],
    output: str | None,
    for_s: float | None,
    after_s: float | None,
    only_range: str | None,
    until_range: str | None,
    graphs: Graphs,
    without: tuple[str, ...],
    max_bytes: int,
    variables: dict[str, str],
    process: str | None,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Record what a program and its children do on CUDA devices, and write a capture.

    Copies, kernels, memsets, graphs, waits, NVTX ranges and allocations, through CUPTI; no other profiler is needed.
    The program's exit code is passed on. While it runs, SIGUSR2 to hprof pauses the recording, SIGUSR1 resumes it.

    \b
    hprof record -- ./llama-bench -m model.gguf -p 2048 -n 0
    hprof record -o traces/mine --after 30 --for 10 -- python serve.py
    hprof record --graphs node --process llama-server -- ./start.sh
    """
    if not program:
        raise click.UsageError("give a command after --, as in: hprof record -- python train.py")
    if shutil.which(program[0]) is None:
        raise HprofError(f"{program[0]} is no program that can be run; give its path, or a name that is in PATH.")
    from profiler.cli.run_output import default_output
    from profiler.recording.launch import run_recorded
    from profiler.recording.session import Recording, RecordingSettings
    from profiler.storage.place import check_place

    path = output or default_output(Path(program[0]).name)
    check_place(path, force=force)
    settings = RecordingSettings(
        graphs=graphs,
        without=without,
        max_bytes=max_bytes,
        after_s=after_s,
        for_s=for_s,
        only_range=only_range,
        until_range=until_range,
        process=process,
    )
    recording = Recording.begin(settings, _spool_folder(path))
    try:
        finished = run_recorded(program, recording, variables, lambda text: say(f"hprof: {text}", err=True))
    except BaseException:
        if not recording.spools():
            recording.remove()
        raise
    _convert(recording, finished, path, force=force, as_json=as_json)
    click.get_current_context().exit(finished.code)


def _spool_folder(path: str) -> Path | None:
    """Beside the capture, where a user finds it should hprof be killed; a temporary one for a capture at a URL."""
    return None if "://" in path else Path(f"{path.rstrip('/')}.spool")


def _convert(recording: Recording, finished: Finished, path: str, *, force: bool, as_json: bool) -> None:
    """Make the capture, and show its report; hprof's own words go to stderr, as stdout is the program's."""
    from profiler.cli.report import show_report
    from profiler.importers import import_files

    for number in finished.still_running:
        say(f"hprof: process {number} still runs; what it does from now on is not recorded.", err=True)
    if not recording.spools():
        recording.remove()
        say(_NOTHING, err=True)
        return
    try:
        known = {"extra": {"recorded_by": "hprof record"}}
        written = import_files([recording.folder], path, force=force, argv=sys.argv, known=known)
    except BaseException:
        say(f"hprof: what was recorded is in {recording.folder}; hprof import reads it.", err=True)
        raise
    recording.remove()
    with contextlib.nullcontext() if as_json else contextlib.redirect_stdout(sys.stderr):
        show_report(written, as_json=as_json)
