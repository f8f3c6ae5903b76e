"""`hprof run`: run A/B passes and write a capture. Chooses who runs them: this process, fresh processes (--boots),
the workers of a Dask cluster (--dask), or another engine (--engine). What is heavy is imported when it is needed, so
that `hprof run --help` is light.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from executor.errors import HprofError
from profiler.cli.asked import AskedOptions
from profiler.cli.llama_flags import settle_llama_flags, variables_used
from profiler.cli.options import dask_option, run_options
from profiler.cli.report import show_report
from profiler.cli.run_output import default_output


class _KeepsArguments(click.Command):
    """Keeps the words of the command line, for the manifest and for fresh processes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["hprof.arguments"] = list(args)
        return super().parse_args(ctx, args)


@click.command(cls=_KeepsArguments)
@run_options
@dask_option("measure the cells, each a cell at a time; -o must be where they all reach it")
@click.pass_context
def command(ctx: click.Context, /, **_values: Any) -> None:
    """Run A/B passes of a hybrid model and write a capture.

    \b
    hprof run
    hprof run -m model.gguf -ot "ffn_(gate|up|down).*=CPU" -pw 0,1 -ub 64,256 -p 512 -n 16
    hprof run -m tiny-moe --arms off,on,full -p 1024 -ub 128-1024*2 --device sim

    All arms of a repetition get the same tokens, in mirrored order; warm-up passes are kept apart. Each
    configuration of -ot, -ncmoe and -ngl is a placement; the second one's arms are called off@2, on@2.
    An arm that is named twice (--arms off,off) is measured against itself, as off@copy2: so much the machine
    alone varies.
    """
    from profiler.running.termination import terminable

    with terminable():
        _dispatch(ctx, AskedOptions.of(ctx), ctx.meta["hprof.arguments"])


def run_words(words: Sequence[str]) -> str:
    """Run what these words of `hprof run` ask for, and give the capture's address; nothing but progress is printed.

    Raises HprofError, also for words that are no options.
    """
    from profiler.running.termination import terminable

    try:
        with terminable(), command.make_context("run", [*words], auto_envvar_prefix="HPROF_RUN") as ctx:
            return _written(ctx, AskedOptions.of(ctx), ctx.meta["hprof.arguments"])
    except click.ClickException as error:
        raise HprofError(error.format_message()) from error


def _dispatch(ctx: click.Context, asked: AskedOptions, arguments: list[str]) -> None:
    if asked.boot is not None and asked.engine == "hprof" and asked.dask is None:
        _run_boot(ctx, settle_llama_flags(asked))
        return
    written = _written(ctx, asked, arguments)
    show_report(written, as_json=asked.as_json, is_whole=asked.is_whole)


def _written(ctx: click.Context, asked: AskedOptions, arguments: list[str]) -> str:
    """Run the passes by whoever is to run them; gives the capture's address."""
    if asked.engine == "hprof":
        asked = settle_llama_flags(asked)
    if asked.dask is not None:
        return run_on_cluster(asked.dask, asked, arguments)
    if asked.engine != "hprof":
        from profiler.cli.run_engines import run_engine

        return run_engine(ctx.command, asked, arguments)
    return _run(ctx, asked, arguments)


def _run(ctx: click.Context, asked: AskedOptions, arguments: list[str]) -> str:
    from profiler.running.termination import raised_afterwards

    with raised_afterwards():
        from profiler.cli.idle_options import idle_options, refuse_others_options, unknown_variables
        from profiler.cli.machine_options import imagined
        from profiler.cli.run_request import build_request
        from profiler.planning.plan import plan_run
        from profiler.running.progress import make_progress
        from profiler.running.run_manifest import initial_fields
        from profiler.running.runner import run_boots, run_capture
        from profiler.storage.writer import new_capture

    refuse_others_options(asked)
    plan = plan_run(build_request(asked))
    output = asked.output or default_output(plan.model.shape.name)
    fields = initial_fields(plan, ["hprof", "run", *arguments])
    fields["machine"] |= imagined(asked)
    fields["warnings"] += [*variables_used(asked), *idle_options(asked, plan), *unknown_variables(ctx.command)]
    writer = new_capture(output, force=asked.force, source="hprof", **fields)
    if plan.request.boots > 1:
        run_boots(writer, arguments, plan.request.boots)
    else:
        run_capture(plan, writer, make_progress())
        writer.finish()
    return writer.path


def _run_boot(ctx: click.Context, asked: AskedOptions) -> None:
    """One fresh process of `--boots`: adds its passes to the capture that its parent made."""
    if asked.boot is None or asked.boot_path is None or asked.boot_run is None:
        raise HprofError("--boot is for hprof's own use: ask for fresh processes with --boots N.")
    from profiler.running.termination import exit_code_of, raised_afterwards

    try:
        with raised_afterwards():
            from profiler.cli.run_request import build_request
            from profiler.planning.plan import plan_run
            from profiler.running.progress import make_progress
            from profiler.running.runner import InterruptedRunError, attach_boot, run_capture
        writer, position = attach_boot(asked.boot_path, asked.boot, asked.boot_run)
        try:
            run_capture(plan_run(build_request(asked)), writer, make_progress(), position)
        except InterruptedRunError as interrupted:
            ctx.exit(interrupted.exit_code)  # the parent says it
    except KeyboardInterrupt as interrupt:
        ctx.exit(exit_code_of(interrupt))


def run_on_cluster(address: str, asked: AskedOptions, arguments: list[str]) -> str:
    """Run the sweep; gives the capture's address. Raises HprofError."""
    _check_cluster_options(asked)
    from profiler.running.termination import raised_afterwards

    with raised_afterwards():
        from profiler.cli.run_request import build_request
        from profiler.cluster import absolute, describe, run_distributed
        from profiler.running.progress import make_progress
        from profiler.storage.writer import new_capture

    request = build_request(asked)
    if Path(request.model).is_file():
        request = replace(request, model=absolute(request.model))
    described = describe(address, request, ["hprof", "run", *arguments])
    output = absolute(asked.output or default_output(described.model))
    writer = new_capture(output, force=asked.force, source="hprof", **described.fields)
    run_distributed(address, request, writer, make_progress())
    writer.finish()
    return writer.path


def _check_cluster_options(asked: AskedOptions) -> None:
    if asked.engine != "hprof":
        raise HprofError(f"--dask runs hprof's own engine; leave out --engine {asked.engine}, or --dask.")
    if asked.boots > 1:
        raise HprofError("--dask and --boots exclude each other: give one of them.")
