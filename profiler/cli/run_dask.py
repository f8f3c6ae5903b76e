"""`hprof run --dask ADDRESS`: the cells of a sweep go to the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from executor.errors import HprofError


def run_on_cluster(values: Mapping[str, Any], arguments: list[str], default_output: Callable[[str], str]) -> str:
    """Run the sweep; gives the capture's address. `default_output` names one after the model. Raises HprofError."""
    _check(values)
    from profiler.cli.run_request import build_request
    from profiler.cluster.connection import absolute
    from profiler.cluster.distributed import describe, run_distributed
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


def _check(values: Mapping[str, Any]) -> None:
    if values["engine"] != "hprof":
        raise HprofError(f"--dask runs hprof's own engine; leave out --engine {values['engine']}, or --dask.")
    if values["boots"] > 1:
        raise HprofError("--dask and --boots exclude each other: give one of them.")
