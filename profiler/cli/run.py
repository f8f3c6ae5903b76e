"""`hprof run`: run A/B passes and write a capture. Chooses who runs them: this process, fresh processes (--boots),
the workers of a Dask cluster (--dask), or another engine (--engine). What is heavy is imported when it is needed, so
that `hprof run --help` is light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from executor.errors import HprofError
from profiler.cli.llama_flags import settle_llama_flags, variables_used
from profiler.cli.options import dask_option, given_values, run_options
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
def command(ctx: click.Context, /, **values: Any) -> None:
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
        _dispatch(ctx, values, ctx.meta["hprof.arguments"])


def run_words(words: Sequence[str]) -> str:
    """Run what these words of `hprof run` ask for, and give the capture's address; nothing but progress is printed.

    Raises HprofError, also for words that are no options.
    """
    from profiler.running.termination import terminable

    try:
        with terminable(), command.make_context("run", [*words], auto_envvar_prefix="HPROF_RUN") as ctx:
            return _written(ctx, ctx.params, ctx.meta["hprof.arguments"])
    except click.ClickException as error:
        raise HprofError(error.format_message()) from error


def _dispatch(ctx: click.Context, values: Mapping[str, Any], arguments: list[str]) -> None:
    if values["boot"] is not None and values["engine"] == "hprof" and values["dask"] is None:
        _run_boot(ctx, settle_llama_flags(values, given_values(ctx)))
        return
    written = _written(ctx, values, arguments)
    show_report(written, as_json=values["as_json"], is_whole=values["is_whole"])


def _written(ctx: click.Context, values: Mapping[str, object], arguments: list[str]) -> str:
    """Run the passes by whoever is to run them; gives the capture's address."""
    if values["engine"] == "hprof":
        values = settle_llama_flags(values, given_values(ctx))
    if values["dask"] is not None:
        return run_on_cluster(values, arguments)
    if values["engine"] != "hprof":
        from profiler.cli.run_engines import run_engine

        return run_engine(ctx, values, arguments)
    return _run(ctx, values, arguments)


def _run(ctx: click.Context, values: Mapping[str, Any], arguments: list[str]) -> str:
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

    given = given_values(ctx)
    refuse_others_options(given)
    plan = plan_run(build_request(values))
    output = values["output"] or default_output(plan.model.shape.name)
    fields = initial_fields(plan, ["hprof", "run", *arguments])
    fields["machine"] |= imagined(values)
    fields["warnings"] += [*variables_used(given), *idle_options(given, plan), *unknown_variables(ctx.command)]
    writer = new_capture(output, force=values["force"], source="hprof", **fields)
    if plan.request.boots > 1:
        run_boots(writer, arguments, plan.request.boots)
    else:
        run_capture(plan, writer, make_progress())
        writer.finish()
    return writer.path


def _run_boot(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """One fresh process of `--boots`: adds its passes to the capture that its parent made."""
    if values["boot_path"] is None or values["boot_run"] is None:
        raise HprofError("--boot is for hprof's own use: ask for fresh processes with --boots N.")
    from profiler.running.termination import exit_code_of, raised_afterwards

    try:
        with raised_afterwards():
            from profiler.cli.run_request import build_request
            from profiler.planning.plan import plan_run
            from profiler.running.progress import make_progress
            from profiler.running.runner import InterruptedRunError, attach_boot, run_capture
        writer, position = attach_boot(values["boot_path"], values["boot"], values["boot_run"])
        try:
            run_capture(plan_run(build_request(values)), writer, make_progress(), position)
        except InterruptedRunError as interrupted:
            ctx.exit(interrupted.exit_code)  # the parent says it
    except KeyboardInterrupt as interrupt:
        ctx.exit(exit_code_of(interrupt))


def run_on_cluster(values: Mapping[str, Any], arguments: list[str]) -> str:
    """Run the sweep; gives the capture's address. Raises HprofError."""
    _check_cluster_options(values)
    from profiler.running.termination import raised_afterwards

    with raised_afterwards():
        from profiler.cli.run_request import build_request
        from profiler.cluster import absolute, describe, run_distributed
        from profiler.running.progress import make_progress
        from profiler.storage.writer import new_capture

    request = build_request(values)
    if Path(request.model).is_file():
        request = replace(request, model=absolute(request.model))
    described = describe(values["dask"], request, ["hprof", "run", *arguments])
    output = absolute(values["output"] or default_output(described.model))
    writer = new_capture(output, force=values["force"], source="hprof", **described.fields)
    run_distributed(values["dask"], request, writer, make_progress())
    writer.finish()
    return writer.path


def _check_cluster_options(values: Mapping[str, Any]) -> None:
    if values["engine"] != "hprof":
        raise HprofError(f"--dask runs hprof's own engine; leave out --engine {values['engine']}, or --dask.")
    if values["boots"] > 1:
        raise HprofError("--dask and --boots exclude each other: give one of them.")
