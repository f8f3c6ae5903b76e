"""All metrics of a large capture: time and peak memory against the targets.

    python benchmarks/metrics_scale.py                # 1 M and 10 M events
    python benchmarks/metrics_scale.py --events 1e6

Each size is written as a capture of hprof's and as an import of two traces (arms `off` and `on`, all rows on one
clock) into a temporary folder, then measured in a fresh process, file reading included.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

N_LAYERS, N_COPIES, N_KERNELS, N_UBATCHES = 48, 3, 12, 40
TARGETS = {1_000_000: (0.5, None), 10_000_000: (5.0, 3000)}  # events -> seconds, MiB


def write_capture(path: Path, n_events: int) -> None:
    """Passes of 40 ubatches over 48 layers, each with 3 copies and 12 kernels, alternately `off` and `on`."""
    from profiler.manifest import ManifestArm
    from profiler.storage.writer import PassKey, new_capture

    per_pass = N_UBATCHES * N_LAYERS * (N_COPIES + N_KERNELS)
    n_passes = max(1, round(n_events / per_pass))
    writer = new_capture(path, source="hprof", arms=[ManifestArm("off"), ManifestArm("on")])
    for pass_id in range(n_passes):
        columns = _pass_events(pass_id, np.random.default_rng(pass_id))
        end = int(columns["t_end"].max())
        writer.write_part("events", columns, f"pass-{pass_id:06d}")
        key = PassKey(("off", "on")[pass_id % 2], 512, 0, 512 * N_UBATCHES, 1, pass_id // 2, pass_id, 0)
        start = int(columns["t_start"].min())
        writer.add_pass_row(pass_id, key, t_start=start, t_end=end, ttft_ns=end - start, prefill_ns=end - start)
    writer.finish()


def write_import(path: Path, n_events: int) -> None:
    """The same events as two imported traces: two arms of one pass each, without phases, ubatches and layers."""
    from profiler.manifest import ManifestArm
    from profiler.storage.writer import new_capture

    half = max(1, round(n_events / 2 / (N_UBATCHES * N_LAYERS * (N_COPIES + N_KERNELS))))
    writer = new_capture(path, source="nsys", arms=[ManifestArm("off"), ManifestArm("on")])
    passes: dict[str, list[Any]] = {name: [] for name in ("pass_id", "arm", "order", "t_start", "t_end")}
    for arm in (0, 1):
        chunks = [_pass_events(number, np.random.default_rng(number)) for number in range(arm * half, (arm + 1) * half)]
        columns = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
        columns = {name: values for name, values in columns.items() if name not in ("phase", "ubatch", "layer")}
        columns["pass_id"] = np.full(len(columns["pass_id"]), arm)
        writer.write_part("events", columns, f"trace-{arm}")
        row = (arm, ("off", "on")[arm], arm, int(columns["t_start"].min()), int(columns["t_end"].max()))
        for name, value in zip(passes, row, strict=True):
            passes[name].append(value)
    writer.write_part("passes", passes, "traces")
    writer.finish()


def _pass_events(pass_id: int, rng: np.random.Generator) -> dict[str, Any]:
    n_layers = N_UBATCHES * N_LAYERS
    n = n_layers * (N_COPIES + N_KERNELS)
    layer_start = np.arange(n_layers) * 2_000_000 + pass_id * n_layers * 2_000_000
    copy = (layer_start[:, None] + np.arange(N_COPIES) * 500_000).ravel()
    kernel = (layer_start[:, None] + np.arange(N_KERNELS) * 150_000).ravel()
    start = np.concatenate([copy, kernel])
    length = rng.integers(20_000, 600_000, n) // np.repeat([1, 4], [len(copy), len(kernel)])
    layers = np.arange(n_layers)
    kinds = np.repeat(np.array(["h2d", "compute"], object), [len(copy), len(kernel)])
    is_copy = kinds == "h2d"
    where = np.concatenate([np.repeat(layers, N_COPIES), np.repeat(layers, N_KERNELS)])
    n_bytes = np.where(is_copy, length * 50, 0)
    columns = {
        "pass_id": np.full(n, pass_id),
        "phase": np.full(n, "prefill", object),
        "ubatch": where // N_LAYERS,
        "layer": where % N_LAYERS,
        "process": np.full(n, 4711),
        "device": np.zeros(n, np.int32),
        "stream": np.where(is_copy, "copy", "compute").astype(object),
        "kind": kinds,
        "name": np.where(is_copy, "weights", "mul_mat").astype(object),
        "tensor": [("ffn" if copy else None) for copy in is_copy],
        "t_start": start,
        "t_end": start + length,
        "bytes": n_bytes,
        "whole_bytes": n_bytes,
        "source_memory": [("pinned" if copy else None) for copy in is_copy],
    }
    order = np.argsort(start, kind="stable")
    return {
        name: np.asarray(values, object if isinstance(values, list) else None)[order]
        for name, values in columns.items()
    }


def measure(path: Path) -> None:
    """Every metric of the capture; prints a table row."""
    from profiler.capture import Capture
    from profiler.metrics import device_figures, layer_figures, load_tables, pass_figures, ubatch_figures

    cpu_before = time.process_time()
    marks = [("", time.perf_counter())]

    def mark(name: str) -> None:
        marks.append((name, time.perf_counter()))

    tables = load_tables(Capture.open(path))
    mark("read")
    pass_figures(*tables)
    mark("passes")
    device_figures(tables.recording)
    mark("devices")
    ubatch_figures(tables.ubatches, tables.recording)
    mark("ubatches")
    layer_figures(tables.recording)
    mark("layers")
    total, cpu_s = marks[-1][1] - marks[0][1], time.process_time() - cpu_before
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    parts = ", ".join(f"{b[0]} {b[1] - a[1]:.2f}" for a, b in itertools.pairwise(marks))
    print(
        f"{tables.recording.n_rows:>12,} events  {total:6.2f} s  {cpu_s:6.2f} cpu-s  {peak_mib:7.0f} MiB   ({parts})",
        flush=True,
    )


def measure_intervals(n: int) -> None:
    """The overlap of two sets of `n` unsorted intervals; prints a table row."""
    from profiler.arithmetic.intervals import covered_length, union

    rng = np.random.default_rng(0)
    sets = []
    for _ in range(2):
        starts = rng.permutation(np.cumsum(rng.integers(1, 2000, n)))
        sets.append((starts, starts + rng.integers(1, 1500, n)))
    before, cpu_before = time.perf_counter(), time.process_time()
    copies, computes = (union(*intervals) for intervals in sets)
    covered_length(computes, *copies).sum()
    wall_s, cpu_s = time.perf_counter() - before, time.process_time() - cpu_before
    print(f"{n:>12,} + {n:,} intervals  {wall_s:6.2f} s  {cpu_s:6.2f} cpu-s   target 0.3 s")


def main() -> None:
    """Write the captures and measure each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=float, nargs="*", default=[1e6, 1e7])
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return
    measure_intervals(1_000_000)
    for n_events in map(int, arguments.events):
        for name, write in (("capture", write_capture), ("A/B import", write_import)):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "capture"
                write(path, n_events)
                print(f"{name:>10}", end="", flush=True)
                subprocess.run([sys.executable, __file__, "--measure", str(path)], check=True)
        seconds, mebibytes = TARGETS.get(n_events, (None, None))
        print(f"{'target':>22}         {seconds or '-':>6} s {'':15} {mebibytes or '-':>7} MiB")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main()
