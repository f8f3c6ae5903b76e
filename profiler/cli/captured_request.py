"""The request behind a capture, from the command line in its manifest: so that what was run can be predicted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from executor.errors import HprofError
from profiler.cli.run_request import build_request
from profiler.manifest import Manifest
from profiler.planning.request import RunRequest


def captured_values(manifest: Manifest, where: str) -> dict[str, Any]:
    """The values of the options that `hprof run` was given when it made the capture at `where`.

    Raises HprofError for captures that no `hprof run` made, and for command lines that this hprof does not read.
    """
    from profiler.cli.run import command

    if manifest.source != "hprof" or manifest.argv[:2] != ["hprof", "run"]:
        raise HprofError(f"{where} was not made by hprof run (source {manifest.source}), so what it ran is not known.")
    try:
        context = command.make_context("run", list(manifest.argv[2:]))
    except click.ClickException as error:
        message = error.format_message().rstrip(".")
        raise HprofError(f"{where}: this hprof does not read the command line that made it ({message}).") from error
    dtype = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}.get(str(manifest.grid.get("dtype")), "bf16")
    routing = manifest.model.get("routing")
    spec = {"routing": _spec(routing)} if isinstance(routing, str) else {}
    return {**context.params, "dtype": dtype, **spec}


def predicted_request(values: Mapping[str, Any]) -> RunRequest:
    """The request that options spell, for machines that are not there: on the `sim` device, one pass a cell."""
    if values["device"] == "cuda":
        values = {**values, "device": "sim"}
    request = build_request({**values, "device": values["device"] or "sim"})
    return replace(
        request,
        device=replace(request.device, kind="sim"),
        routing=None if request.routing == "model" else request.routing,
        repetitions=1,
        recorder="native",
        record_ordering=False,
        inject=None,
        boots=1,
    )


def _spec(label: str) -> str:
    """A routing's label as `--routing` takes it: its seed is the request's."""
    name, _, numbers = label.partition(":")
    if name == "trace":
        return label
    return f"{name}:{','.join(part for part in numbers.split(',') if not part.startswith('seed='))}"
