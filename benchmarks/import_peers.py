"""Reading the same traces with hprof and with its peers: time to load and summarise or compare, and peak memory.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install HolisticTraceAnalysis "pandas<3" nsys-ai
    python benchmarks/import_peers.py --peers-python /tmp/peers/bin/python

Every row is the fastest of `--repeats` fresh processes on the same input; a peer that cannot be imported is left out
and named. hprof's row covers the import into a capture and the figures of every device; Holistic Trace Analysis'
covers loading and its temporal breakdown; nsys-ai's its `summary`. Of two traces hprof imports both into a capture
each and does what `hprof compare` does; nsys-ai its `diff`, without its language model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.import_scale import write_parquetdir
from benchmarks.kineto_trace import write_kineto

_ROOT = Path(__file__).resolve().parents[1]
_TIMED = """
import json, resource, sys, time
started = time.perf_counter()
{body}
peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([time.perf_counter() - started, peak_mib]))
"""
_HPROF = """
from pathlib import Path
from profiler.capture import Capture
from profiler.importers import import_files
from profiler.metrics import device_figures, load_tables
capture = Capture.open(import_files([Path(sys.argv[1])], Path(sys.argv[2]), force=True))
assert device_figures(load_tables(capture).recording)
"""
_HPROF_COMPARE = """
from pathlib import Path
from profiler.compare import compare_captures
from profiler.compare.renderers import render_json
from profiler.importers import import_files
captures = [import_files([Path(path)], Path(sys.argv[-1]) / name, force=True) for name, path in zip("ab", sys.argv[1:])]
result = compare_captures(*captures)
assert result.devices and render_json(result)
"""
_HTA = """
import os
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=os.path.dirname(sys.argv[1]))
assert len(analysis.get_temporal_breakdown(visualize=False))
"""
_NSYS_AI = """
from nsys_ai.__main__ import main
sys.argv = ["nsys-ai", "summary", sys.argv[1]]
main()
"""
_NSYS_AI_DIFF = """
from nsys_ai.__main__ import main
sys.argv = ["nsys-ai", "diff", sys.argv[1], sys.argv[2], "--no-ai"]
main()
"""
Writer = Callable[[Path, int], None]


@dataclass(frozen=True)
class Contest:
    """One task for hprof and a peer. The code gets the traces' paths and a scratch folder as arguments."""

    name: str
    traces: dict[str, Writer]  # file name -> what writes it
    hprof: str
    peer: str
    peer_code: str
    module: str  # what the peer's code imports


def _second(path: Path, n_rows: int) -> None:
    write_parquetdir(path, n_rows, seed=1)


_TWO: dict[str, Writer] = {"a_pqtdir": write_parquetdir, "b_pqtdir": _second}
CONTESTS = (
    Contest("Kineto JSON", {"trace.json": write_kineto}, _HPROF, "Holistic Trace Analysis", _HTA, "hta"),
    Contest("parquetdir", {"a_pqtdir": write_parquetdir}, _HPROF, "nsys-ai summary", _NSYS_AI, "nsys_ai"),
    Contest("two parquetdirs", _TWO, _HPROF_COMPARE, "nsys-ai diff", _NSYS_AI_DIFF, "nsys_ai"),
)


def timed(python: str, body: str, traces: Sequence[Path], scratch: Path, repeats: int) -> tuple[float, float]:
    """(seconds, peak MiB): the fastest run and the highest peak."""
    runs = []
    for _ in range(repeats):
        command = [python, "-c", _TIMED.format(body=body), *map(str, traces), str(scratch)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=_ROOT)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return min(run[0] for run in runs), max(run[1] for run in runs)


def has_module(python: str, module: str) -> bool:
    """Whether the peers' interpreter can import `module`."""
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0


def main() -> None:
    """Print a table of all contests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=1e6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers-python", help="an interpreter that has HolisticTraceAnalysis and nsys-ai")
    options = parser.parse_args()
    n_rows = int(options.rows)
    print("| input | rows | MiB | tool | s | peak MiB | times hprof's |")
    print("|---|---|---|---|---|---|---|")
    for contest in CONTESTS:
        with tempfile.TemporaryDirectory() as folder:
            run(contest, n_rows, Path(folder), options.repeats, options.peers_python)


def run(contest: Contest, n_rows: int, folder: Path, repeats: int, peers_python: str | None) -> None:
    """Write the traces and print a line each for hprof and the peer."""
    traces = [folder / file_name for file_name in contest.traces]
    for trace, write in zip(traces, contest.traces.values(), strict=True):
        write(trace, n_rows)
    files = (file for trace in traces for file in (trace.rglob("*") if trace.is_dir() else [trace]))
    size = f"{len(traces)} x {n_rows:,}" if len(traces) > 1 else f"{n_rows:,}"
    start = f"| {contest.name} | {size} | {sum(file.stat().st_size for file in files) / 2**20:.0f} |"
    seconds, peak_mib = timed(sys.executable, contest.hprof, traces, folder / "captures", repeats)
    print(f"{start} hprof | {seconds:.2f} | {peak_mib:.0f} | 1 |", flush=True)
    if peers_python is None or not has_module(peers_python, contest.module):
        print(f"{start} {contest.peer} | left out: --peers-python has no `{contest.module}` | | |", flush=True)
        return
    try:
        peer_s, peer_mib = timed(peers_python, contest.peer_code, traces, folder / "scratch", repeats)
    except subprocess.CalledProcessError as error:
        print(f"{start} {contest.peer} | failed: {error.stderr.strip().splitlines()[-1]} | | |", flush=True)
        return
    print(f"{start} {contest.peer} | {peer_s:.2f} | {peer_mib:.0f} | {peer_s / seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
