"""Small hand-made traces with known answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from profiler.importers.base import Imported, ImportOptions
from profiler.importers.kineto import read

Event = dict[str, Any]


def x(cat: str, name: str, ts: Any, dur: Any, *, pid: Any = 0, tid: Any = 7, **args: Any) -> Event:
    """A complete event, times in microseconds."""
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(ts: float, dur: float, name: str = "gemm", **args: Any) -> Event:
    return x("kernel", name, ts, dur, **{"device": 0, "stream": 7, "correlation": 1, **args})


def h2d(ts: float, dur: float, n_bytes: int = 100, **args: Any) -> Event:
    known = {"device": 0, "stream": 14, "correlation": 2, "bytes": n_bytes}
    return x("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", ts, dur, tid=14, **(known | args))


def call(ts: float, dur: float, correlation: int, *, tid: int = 9, pid: int = 400, **args: Any) -> Event:
    return x("cuda_runtime", "cudaLaunchKernel", ts, dur, pid=pid, tid=tid, correlation=correlation, **args)


def annotation(name: str, ts: float, dur: float, *, tid: int = 9, pid: int = 400) -> Event:
    return x("user_annotation", name, ts, dur, pid=pid, tid=tid)


def write(path: Path, events: list[Event], **keys: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **keys}, indent=1))
    return path


def imported(tmp_path: Path, events: list[Event], **keys: Any) -> Imported:
    return read(write(tmp_path / "trace.json", events, **keys), ImportOptions())


def rows(result: Imported, table: str = "events") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result.tables[table].to_pylist()
    return found
