"""Importing large traces: time and peak memory of a fresh process, against the targets.

    python benchmarks/import_scale.py                     # 1 M and 10 M rows of every input
    python benchmarks/import_scale.py --rows 1e6 --inputs sqlite,parquetdir

An input is a function `write(path, n_rows)`; adding one to INPUTS is all that a new format takes. Each file is
written into a temporary folder and imported to a capture there, reading and writing included.
"""

from __future__ import annotations

import argparse
import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.kineto_trace import write_kineto

GLOBAL_PID = (1 << 48) | (17068 << 24)
N_NAMES = 200


@dataclass(frozen=True)
class Input:
    """One format: how to write it, and the targets by number of rows: (seconds, MiB), None for no target."""

    file_name: str
    write: Callable[[Path, int], None]
    targets: dict[int, tuple[float | None, float | None]]


def nsys_tables(n_rows: int, seed: int = 0) -> dict[str, dict[str, np.ndarray | list[str]]]:
    """An export of `n_rows` rows: 35 % kernels, 8 % copies, 2 % memsets, 45 % API calls, 10 % NVTX ranges.

    Every device row has the API call that launched it; ranges of 5 calls nest inside ranges of 50.
    """
    rng = np.random.default_rng(seed)
    n_kernels, n_copies, n_memsets, n_ranges = (n_rows * share // 100 for share in (35, 8, 2, 10))
    n_device = n_kernels + n_copies + n_memsets
    call_start = 10**9 + np.arange(n_device) * 6_000
    correlation = np.arange(1, n_device + 1)
    kind = rng.permutation(np.repeat([0, 1, 2], [n_kernels, n_copies, n_memsets]))
    start = call_start + 20_000
    device = {
        "start": start,
        "end": start + rng.integers(2_000, 5_500, n_device),
        "deviceId": np.zeros(n_device, np.int64),
        "contextId": np.ones(n_device, np.int64),
        "streamId": np.where(kind == 1, 14, 7),
        "correlationId": correlation,
        "globalPid": np.full(n_device, GLOBAL_PID),
    }
    kernels, copies, memsets = ({k: v[kind == code] for k, v in device.items()} for code in (0, 1, 2))
    kernels |= dict.fromkeys(("demangledName", "shortName"), rng.integers(0, N_NAMES, n_kernels))
    copies |= {"bytes": (copies["end"] - copies["start"]) * 25, "copyKind": np.full(n_copies, 1)}
    copies |= {"srcKind": np.full(n_copies, 1), "dstKind": np.full(n_copies, 2)}
    memsets |= {"value": np.zeros(n_memsets, np.int64), "bytes": np.full(n_memsets, 4096)}
    calls = {
        "start": call_start,
        "end": call_start + 3_000,
        "eventClass": np.zeros(n_device, np.int64),
        "globalTid": np.full(n_device, GLOBAL_PID + 17068),
        "correlationId": correlation,
        "nameId": N_NAMES + kind,
        "returnValue": np.zeros(n_device, np.int64),
    }
    return {
        "StringIds": {"id": np.arange(N_NAMES + 3), "value": _names()},
        "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
        "CUPTI_ACTIVITY_KIND_MEMCPY": copies,
        "CUPTI_ACTIVITY_KIND_MEMSET": memsets,
        "CUPTI_ACTIVITY_KIND_RUNTIME": calls,
        "NVTX_EVENTS": _nvtx(call_start, n_ranges),
        "META_DATA_EXPORT": {"name": ["EXPORT_SCHEMA_VERSION"], "value": ["3.25.0"]},
    }


def _names() -> list[str]:
    kernels = [f"void gemm_kernel<float, {i}, 128>(const float*, float*, int)" for i in range(N_NAMES)]
    return [*kernels, "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaMemsetAsync_v3020"]


def _nvtx(call_start: np.ndarray, n_ranges: int) -> dict[str, np.ndarray | list[str]]:
    inner, outer = call_start[::5][: n_ranges - n_ranges // 10], call_start[::50][: n_ranges // 10]
    start = np.concatenate([outer - 200, inner - 100])
    length = np.repeat([50 * 6_000 - 300, 5 * 6_000 - 1_000], [len(outer), len(inner)])
    names = [f"model.layers.{i % 48}.mlp" for i in range(len(outer))]
    names += [f"aten::mul, op_id = {i}" for i in range(len(inner))]
    return {
        "start": start,
        "end": start + length,
        "eventType": np.full(len(start), 59),
        "text": names,
        "globalTid": np.full(len(start), GLOBAL_PID + 17068),
        "domainId": np.zeros(len(start), np.int64),
    }


def write_sqlite(path: Path, n_rows: int) -> None:
    """The export as one SQLite file, with nsys's column types."""
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode=OFF")
    database.execute("PRAGMA synchronous=OFF")
    for table, columns in nsys_tables(n_rows).items():
        listed = ", ".join(f'"{n}" {"TEXT" if isinstance(v, list) else "INTEGER"}' for n, v in columns.items())
        database.execute(f"CREATE TABLE {table} ({listed})")
        values = [column if isinstance(column, list) else column.tolist() for column in columns.values()]
        database.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", zip(*values, strict=True))
    database.commit()
    database.close()


def write_parquetdir(path: Path, n_rows: int, seed: int = 0) -> None:
    """The export as a folder, one parquet file a table."""
    path.mkdir()
    for table, columns in nsys_tables(n_rows, seed).items():
        pq.write_table(pa.table(columns), path / f"{table}.parquet")


INPUTS = {
    "sqlite": Input("trace.sqlite", write_sqlite, {1_000_000: (4.0, 500), 10_000_000: (None, None)}),
    "parquetdir": Input("trace_pqtdir", write_parquetdir, {1_000_000: (0.5, None), 10_000_000: (None, None)}),
    "kineto": Input("trace.json", write_kineto, {1_000_000: (6.0, 700), 10_000_000: (None, None)}),
}


def measure(source: Path, target: Path) -> None:
    """Import once and print a JSON line; runs in a process of its own."""
    from profiler.importers import import_files, read_file

    started = time.perf_counter()
    imported = read_file(source)
    read_s = time.perf_counter() - started
    del imported
    started = time.perf_counter()
    import_files([source], target, force=True)
    import_s = time.perf_counter() - started
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"read_s": read_s, "import_s": import_s, "peak_mib": peak_mib}))


def best_of(source: Path, target: Path, repeats: int) -> dict[str, float]:
    """The fastest of some fresh processes, and the highest peak."""
    runs = []
    for _ in range(repeats):
        command = [sys.executable, __file__, "--measure", str(source), str(target)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    best = {name: min(run[name] for run in runs) for name in ("read_s", "import_s")}
    return best | {"peak_mib": max(run["peak_mib"] for run in runs)}


def row(
    name: str, n_rows: int, n_bytes: int, found: dict[str, float], target: tuple[float | None, float | None]
) -> str:
    """One line of the table; a ratio of 1 or less meets the target."""
    seconds, mebibytes = target
    shares = [
        "" if limit is None else f"{limit:g} ({found[key] / limit:.2f})"
        for key, limit in (("import_s", seconds), ("peak_mib", mebibytes))
    ]
    return (
        f"| {name} | {n_rows:,} | {n_bytes / 2**20:.0f} | {found['read_s']:.2f} | {found['import_s']:.2f} "
        f"| {shares[0]} | {found['peak_mib']:.0f} | {shares[1]} |"
    )


def main() -> None:
    """Write each input at each size, import it, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1e6,1e7", help="comma list of row counts")
    parser.add_argument("--inputs", default=",".join(INPUTS), help=f"comma list of {', '.join(INPUTS)}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(*options.measure)
        return
    print("| input | rows | MiB | read s | import s | target s (ratio) | peak MiB | target MiB (ratio) |")
    print("|---|---|---|---|---|---|---|---|")
    for n_rows in (int(float(text)) for text in options.rows.split(",")):
        for name in options.inputs.split(","):
            with tempfile.TemporaryDirectory() as folder:
                source = Path(folder) / INPUTS[name].file_name
                INPUTS[name].write(source, n_rows)
                n_bytes = sum(f.stat().st_size for f in (source.rglob("*") if source.is_dir() else [source]))
                found = best_of(source, Path(folder) / "capture", options.repeats)
                print(row(name, n_rows, n_bytes, found, INPUTS[name].targets.get(n_rows, (None, None))), flush=True)


if __name__ == "__main__":
    main()
