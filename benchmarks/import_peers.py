"""Reading the same trace with hprof and with its peers: time to load and summarise, and peak memory.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install HolisticTraceAnalysis nsys-ai
    python benchmarks/import_peers.py --peers-python /tmp/peers/bin/python

Every row is the fastest of `--repeats` fresh processes on the same input; a peer that cannot be imported is left out
and named. hprof's row covers the import into a capture and the figures of every device; Holistic Trace Analysis'
covers loading and its temporal breakdown; nsys-ai's its `summary`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.import_scale import write_parquetdir
from benchmarks.kineto_trace import write_kineto

_ROOT = Path(__file__).resolve().parents[1]
_TIMED = """
import json, resource, sys, time
started = time.perf_counter()
{body}
peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([time.perf_counter() - started, peak_mb]))
"""
_HPROF = """
from pathlib import Path
from profiler.capture import Capture
from profiler.importers import import_files
from profiler.metrics import device_figures, load_tables
capture = Capture.open(import_files([Path(sys.argv[1])], Path(sys.argv[2]), force=True))
assert device_figures(load_tables(capture).recording, by_pass=False)
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
# input -> (file name, writer, peer's name, peer's code, the module it needs)
_INPUTS: dict[str, tuple[str, Callable[[Path, int], None], str, str, str]] = {
    "Kineto JSON": ("trace.json", write_kineto, "Holistic Trace Analysis", _HTA, "hta"),
    "nsys parquetdir": ("trace_pqtdir", write_parquetdir, "nsys-ai", _NSYS_AI, "nsys_ai"),
}


def timed(python: str, body: str, source: Path, scratch: Path, repeats: int) -> tuple[float, float]:
    """(seconds, peak MB): the fastest run and the highest peak."""
    runs = []
    for _ in range(repeats):
        command = [python, "-c", _TIMED.format(body=body), str(source), str(scratch)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=_ROOT)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return min(run[0] for run in runs), max(run[1] for run in runs)


def has_module(python: str | None, module: str) -> bool:
    """Whether the peers' interpreter can import `module`."""
    return (
        python is not None and subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0
    )


def main() -> None:
    """Write each input, time hprof and its peer on it, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=1e6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers-python", help="an interpreter that has HolisticTraceAnalysis and nsys-ai")
    options = parser.parse_args()
    n_rows = int(options.rows)
    print("| input | rows | MB | tool | s | peak MB | times hprof's |")
    print("|---|---|---|---|---|---|---|")
    for name, (file_name, write, peer, body, module) in _INPUTS.items():
        with tempfile.TemporaryDirectory() as folder:
            source, scratch = Path(folder) / file_name, Path(folder) / "capture"
            write(source, n_rows)
            n_bytes = sum(f.stat().st_size for f in (source.rglob("*") if source.is_dir() else [source]))
            seconds, peak_mb = timed(sys.executable, _HPROF, source, scratch, options.repeats)
            start = f"| {name} | {n_rows:,} | {n_bytes / 1e6:.0f} |"
            print(f"{start} hprof | {seconds:.2f} | {peak_mb:.0f} | 1 |", flush=True)
            if not has_module(options.peers_python, module):
                print(f"{start} {peer} | left out: `{module}` cannot be imported by --peers-python | | |", flush=True)
                continue
            peer_s, peer_mb = timed(options.peers_python, body, source, scratch, options.repeats)
            print(f"{start} {peer} | {peer_s:.2f} | {peer_mb:.0f} | {peer_s / seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
