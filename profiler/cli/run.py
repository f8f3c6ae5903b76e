"""`hprof run`: run A/B passes and write a capture."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

import click

from executor.errors import HprofError
from profiler.cli.options import DEFAULT_TRACES, dask_option, given_values
from profiler.cli.run_options import run_options
from profiler.cli.show import show_report


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


def _dispatch(ctx: click.Context, values: Mapping[str, Any], arguments: list[str]) -> None:
    if values["dask"] is not None:
        from profiler.cli.run_dask import run_on_cluster

        show_report(run_on_cluster(values, arguments, default_output), as_json=values["as_json"])
    elif values["engine"] == "llama-bench":
        show_report(_run_llama_bench(ctx, values, arguments), as_json=values["as_json"])
    elif values["boot"] is not None:
        _run_boot(ctx, values)
    else:
        path = _run(ctx, values, arguments)
        show_report(path, as_json=values["as_json"])


def _run(ctx: click.Context, values: Mapping[str, Any], arguments: list[str]) -> str:
    from profiler.cli.idle_options import idle_options, refuse_others_options, unknown_variables
    from profiler.cli.run_request import build_request
    from profiler.planning.plan import plan_run
    from profiler.running.boots import run_boots
    from profiler.running.progress import make_progress
    from profiler.running.run_manifest import initial_fields
    from profiler.running.runner import run_capture
    from profiler.storage.writer import new_capture

    given = given_values(ctx)
    refuse_others_options(given)
    plan = plan_run(build_request(values))
    output = values["output"] or default_output(plan.model.shape.name)
    fields = initial_fields(plan, ["hprof", "run", *arguments])
    fields["warnings"] += [*idle_options(given, plan), *unknown_variables(ctx.command)]
    writer = new_capture(output, force=values["force"], source="hprof", **fields)
    if plan.request.boots > 1:
        run_boots(writer.path, arguments, plan.request.boots)
    else:
        run_capture(plan, writer, make_progress())
        writer.finish()
    return writer.path


def _run_boot(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """One fresh process of `--boots`: adds its passes to the capture that its parent made."""
    from profiler.cli.run_request import build_request
    from profiler.planning.plan import plan_run
    from profiler.running.boots import attach
    from profiler.running.progress import make_progress
    from profiler.running.runner import InterruptedRunError, run_capture

    if values["boot_path"] is None:
        raise HprofError("--boot is for hprof's own use: ask for fresh processes with --boots N.")
    writer, position = attach(values["boot_path"], values["boot"])
    try:
        run_capture(plan_run(build_request(values)), writer, make_progress(), position)
    except InterruptedRunError as interrupted:
        ctx.exit(interrupted.exit_code)  # the parent says it


def _run_llama_bench(ctx: click.Context, values: Mapping[str, Any], arguments: list[str]) -> str:
    from profiler.cli.run_llama_bench import run

    return run(ctx, values, arguments, default_output("llama-bench"))


def default_output(model: str) -> str:
    """Where the capture of a run goes that names no -o: a folder that is not there yet."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip("-.") or "model"
    first = f"{DEFAULT_TRACES}/{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    others = (f"{first}-{number}" for number in count(2))
    return next(path for path in chain([first], others) if not Path(path).exists())
