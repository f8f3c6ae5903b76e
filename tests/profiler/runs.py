"""Small runs for tests: a request of a few milliseconds a pass, and a capture of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from executor.devices.factory import DeviceOptions
from profiler.capture import Capture
from profiler.planning.plan import RunPlan, plan_run
from profiler.planning.request import GridPoint, RunRequest
from profiler.running.progress import RunProgress
from profiler.running.run_manifest import initial_fields
from profiler.running.runner import run_capture
from profiler.storage.writer import CaptureWriter, new_capture

SMALL_CELL = GridPoint(n_prompt=64, n_gen=2, n_ubatch=32, n_depth=0)


def small_request(kind: Any = "sim", **changes: Any) -> RunRequest:
    """Two layers of tiny-dense, arms off and on, two repetitions."""
    device = DeviceOptions(kind, n_threads=1, link_gb_s=100.0, link_latency_us=1.0)
    settings: dict[str, Any] = {"cells": (SMALL_CELL,), "device": device, "layers": 2, "repetitions": 2}
    return RunRequest(**(settings | changes))


def start_capture(plan: RunPlan, path: Path) -> CaptureWriter:
    return new_capture(path, source="hprof", **initial_fields(plan, ["hprof", "run"]))


def make_capture(path: Path, request: RunRequest, progress: RunProgress | None = None) -> Capture:
    """Run a request to its end."""
    plan = plan_run(request)
    writer = start_capture(plan, path)
    run_capture(plan, writer, progress)
    writer.finish()
    return Capture.open(path)
