"""The request behind a capture, from the command line in its manifest: so that what was run can be predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import click

from executor.errors import HprofError
from profiler.cli.asked import AskedOptions
from profiler.cli.run_request import build_request
from profiler.manifest import Manifest
from profiler.planning.request import RunRequest


def captured_options(manifest: Manifest, where: str) -> AskedOptions:
    """The options that `hprof run` was given when it made the capture at `where`.

    Raises HprofError for captures that no `hprof run` made, and for command lines that this hprof does not read.
    """
    from profiler.cli.run import command

    if not manifest.is_own_run:
        raise HprofError(f"{where} was not made by hprof run (source {manifest.source}), so what it ran is not known.")
    try:
        context = command.make_context("run", list(manifest.argv[2:]))
    except click.ClickException as error:
        message = error.format_message().rstrip(".")
        raise HprofError(f"{where}: this hprof does not read the command line that made it ({message}).") from error
    dtype = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}.get(str(manifest.grid.get("dtype")), "bf16")
    routing = manifest.model.get("routing")
    spec = {"routing": _spec(routing)} if isinstance(routing, str) else {}
    return AskedOptions.of(context).but(dtype=dtype, keeps_rows="all_logits" not in manifest.grid, **spec)


def predicted_request(asked: AskedOptions) -> RunRequest:
    """The request that options spell, for machines that are not there: on the `sim` device, one pass a cell."""
    request = build_request(asked.but(device="cpu" if asked.device == "cpu" else "sim"))
    return replace(
        request,
        device=replace(request.device, kind="sim"),
        routing=None if request.routing == "model" else request.routing,
        keeps_rows=asked.keeps_rows,
        repetitions=1,
        recorder="native",
        record_ordering=False,
        inject=None,
        boots=1,
    )


PLACED_BY: Final = {"override_tensor": (), "n_cpu_moe": (), "n_gpu_layers": (), "vram_budget": None}
"""The options that say where weights lie, each as where it is left out."""
_OWN: Final = ("output", "force", "as_json", "fits", "against", "device", "objective", "engine", "verify", "probe")


def overlaid(captured: AskedOptions | None, asked: AskedOptions) -> AskedOptions:
    """The options to predict by: a capture's own, where there is one, under what the user gave.

    Arms and placements that are given replace all that chose them in the capture.
    """
    if captured is None:
        return asked
    given = {name: asked.values[name] for name in asked.typed if name not in _OWN}
    if asked.names_arms:
        given = {"arms": None, "prefetch_weights": None} | given
    if PLACED_BY.keys() & given.keys():
        given = PLACED_BY | given
    return AskedOptions({**captured.values, **given}, asked.typed)


def _spec(label: str) -> str:
    """A routing's label as `--routing` takes it: its seed is the request's."""
    name, _, numbers = label.partition(":")
    if name == "trace":
        return label
    return f"{name}:{','.join(part for part in numbers.split(',') if not part.startswith('seed='))}"
