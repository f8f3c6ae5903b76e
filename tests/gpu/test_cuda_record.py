"""`hprof record` on a GPU: what real CUPTI says of small PyTorch programs whose copies and kernels are known.

What is timed is recorded alone, the other programs side by side, and each test prints what it looks at, as one run on a
lent machine has to tell all. It is meant to end within two minutes; tests whose programs have ended are done before.
    python -m pytest -o addopts= -m cuda -rA tests/gpu/test_cuda_record.py
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import hprof
from executor.compiling import find_compiler
from profiler.capture import Capture
from profiler.recording.build import built_library
from profiler.recording.cupti_files import find_headers, find_libraries
from tests.support import ROOT

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
    pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler"),
    pytest.mark.skipif(not find_headers(), reason="no headers of CUPTI: pip install 'hprof[record]'"),
    pytest.mark.skipif(not find_libraries(), reason="no libcupti: pip install 'hprof[record]'"),
]

N_LAYERS, N_BYTES = 12, 64 << 20
MAX_S = 60  # for one program: a machine is lent by the minute
# Two slots, a copy stream and a compute stream, ordered by events alone; ranges name the layers.
DOUBLE_BUFFER = f"""
import json, sys, torch
n_layers, n_bytes = {N_LAYERS}, {N_BYTES}
host = torch.empty(n_bytes // 2, dtype=torch.bfloat16, pin_memory=True).zero_()
slots = [torch.empty(n_bytes // 2, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
copying, computing = torch.cuda.Stream(), torch.cuda.Stream()
torch.mm(a, a); torch.cuda.synchronize()
marks, freed = [], [None, None]
for layer in range(n_layers):
    slot = layer % 2
    torch.cuda.nvtx.range_push(f"layer {{layer}}")
    with torch.cuda.stream(copying):
        if freed[slot] is not None:
            copying.wait_event(freed[slot])
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(); slots[slot].copy_(host, non_blocking=True); end.record()
        marks.append((begin, end))
    with torch.cuda.stream(computing):
        computing.wait_event(end)
        for _ in range(8):
            b = a @ a
        freed[slot] = torch.cuda.Event(); freed[slot].record()
    torch.cuda.nvtx.range_pop()
torch.cuda.synchronize()
print(json.dumps({{"copy_ms": [x.elapsed_time(y) for x, y in marks]}}))
"""


@dataclass(frozen=True)
class Recorded:
    """A program's end, and what was recorded of it."""

    code: int
    output: str
    errors: str
    folder: Path
    seconds: float

    @property
    def capture(self) -> Capture:
        return Capture.open(str(self.folder))

    def rows(self, **wanted: Any) -> list[dict[str, Any]]:
        rows = self.capture.table("events").to_pylist()
        return [row for row in rows if all(row[name] == value for name, value in wanted.items())]

    def tell(self) -> None:
        """All that may explain a failure."""
        print(f"\n{self.folder.name}: exit code {self.code} after {self.seconds:.1f} s")
        print(self.output[-1500:], self.errors[-4000:], sep="\n")
        if not (self.folder / "manifest.json").is_file():
            return
        manifest = self.capture.manifest
        shown = {name: manifest.extra.get(name) for name in ("processes", "streams", "nvtx_ranges", "profiler_errors")}
        memory = manifest.extra.get("device_memory") or []
        shown["peak_bytes"] = [(row["process"], row["device"], row["peak_bytes"]) for row in memory]
        print(json.dumps(shown, indent=1, default=str)[:6000])
        print("warnings:", *manifest.warnings, "cannot say:", *manifest.cannot_say, sep="\n  ")
        print("dropped:", dict(manifest.dropped), "machine:", manifest.machine)
        rows = self.rows()
        print("kinds:", Counter((row["kind"], row["detail"]) for row in rows).most_common())
        print("names:", Counter(row["name"] for row in rows).most_common(25))
        print(
            "copies:", Counter((r["kind"], r["source_memory"], r["bytes"]) for r in rows if r["bytes"]).most_common(20)
        )


def record(folder: Path, program: list[str], *options: str) -> Recorded:
    """Run a program under `hprof record`; one that hangs is ended, as a failure of its own test."""
    command = [sys.executable, "-m", "hprof", "record", "-o", str(folder), *options, "--", *program]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables, pipe, began = os.environ | {"PYTHONPATH": path}, subprocess.PIPE, time.monotonic()
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=variables, start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=MAX_S)
        except subprocess.TimeoutExpired:
            stacks = [f"{path}: {path.read_text()}" for path in Path("/proc").glob("[0-9]*/wchan") if path.is_file()]
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            errors += f"\nno end within {MAX_S} s; what processes waited for:\n" + "\n".join(stacks)[-3000:]
    return Recorded(process.returncode, output, errors, folder, time.monotonic() - began)


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


class Recordings:
    """The programs, recorded: what is timed alone, the others side by side; a test waits for its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        print("\nheaders:", find_headers(), "\nlibcupti:", find_libraries(), "\nlibrary:", built_library())
        two = [sys.executable, "-c", ENDLESS]
        pair = f"import subprocess; ps = [subprocess.Popen({two!r}) for _ in range(2)]; print([p.wait() for p in ps])"
        fork = ENDLESS + "\nif (child := os.fork()) == 0: os._exit(0)\nos.waitpid(child, 0); work(50)"
        beside: dict[str, tuple[str, list[str]]] = {
            "directions": (DIRECTIONS, []),
            "auto": (GRAPHS, []),
            "node": (GRAPHS, ["--graphs", "node"]),
            "range": (ONLY_RANGE, ["--only-range", "here"]),
            "fork": (fork, []),
            "two": (pair, []),
            "none": ("print('said')", []),
            "both": (BOTH, []),
        } | {name: (ENDLESS + line, []) for name, (line, _) in ENDINGS.items()}
        self._found = {"double": record(folder / "double", python(DOUBLE_BUFFER))}
        self._pool = ThreadPoolExecutor(len(beside))
        self._begun = {n: self._pool.submit(record, folder / n, python(s), *o) for n, (s, o) in beside.items()}

    def shown(self, name: str) -> Recorded:
        """One of them, all of it printed."""
        if name not in self._found:
            self._found[name] = self._begun[name].result() if name in self._begun else self._recorded_alone(name)
        self._found[name].tell()
        return self._found[name]

    def _recorded_alone(self, name: str) -> Recorded:
        """hprof's own run, after all the others."""
        self._pool.shutdown()
        return record(self._folder / name, own_run(self._folder / "own"), "--graphs", "node")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    return Recordings(tmp_path_factory.mktemp("record"))


@pytest.fixture
def double_buffer(recorded: Recordings) -> Recorded:
    return recorded.shown("double")


def big_copies(found: Recorded) -> list[dict[str, Any]]:
    return sorted((row for row in found.rows(kind="h2d") if row["bytes"] == N_BYTES), key=lambda row: row["t_start"])


def test_the_copies_to_the_byte(double_buffer: Recorded) -> None:
    copies = big_copies(double_buffer)
    assert double_buffer.code == 0
    assert len(copies) == N_LAYERS
    assert {row["source_memory"] for row in copies} == {"pinned"}
    assert len({row["stream"] for row in copies}) == 1
    kernels = [row for row in double_buffer.rows(kind="compute", detail=None) if row["layer"] is not None]
    assert {row["stream"] for row in kernels}.isdisjoint({row["stream"] for row in copies})


def test_their_times_are_those_of_the_programs_own_events(double_buffer: Recorded) -> None:
    """Events lie some microseconds outside of the copy; those of the first one wait for what CUDA sets up."""
    own_ms = json.loads(double_buffer.output.splitlines()[-1])["copy_ms"]
    seen_ms = [(row["t_end"] - row["t_start"]) / 1e6 for row in big_copies(double_buffer)]
    print("own:", own_ms, "\nseen:", seen_ms)
    assert all(seen <= own + 0.005 for own, seen in zip(own_ms, seen_ms, strict=True))
    assert sum(seen_ms[1:]) == pytest.approx(sum(own_ms[1:]), rel=0.03)


def test_ranges_find_their_work(double_buffer: Recorded) -> None:
    assert [row["layer"] for row in big_copies(double_buffer)] == list(range(N_LAYERS))
    products = [row for row in double_buffer.rows(kind="compute", detail=None) if row["layer"] is not None]
    (n_kernels,) = set(Counter(row["layer"] for row in products).values())
    assert n_kernels % 8 == 0, "eight products a layer, of one kernel each or a few"


def test_names_are_demangled_and_nothing_was_lost(double_buffer: Recorded) -> None:
    names = {row["name"] for row in double_buffer.rows(kind="compute")}
    assert names
    assert not [name for name in names if name is None or name.startswith("_Z")]
    manifest = double_buffer.capture.manifest
    assert manifest.extra["profiler_errors"] == []
    assert all(process["ended"] for process in manifest.extra["processes"])
    assert manifest.machine["gpus"][0]["name"] == torch.cuda.get_device_name(0)
    # PyTorch allocated at least the slots and the matrix, and the H200's allocator nothing that is far beyond
    (memory,) = manifest.extra["device_memory"]
    assert memory["peak_bytes"] >= 2 * N_BYTES + 4096 * 4096 * 2


DIRECTIONS = """
import torch
pinned, pageable = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True), torch.empty(3 << 20, dtype=torch.uint8)
x = torch.empty(1 << 20, dtype=torch.uint8, device="cuda"); y = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
z = torch.empty(5 << 20, dtype=torch.uint8, device="cuda"); w = torch.empty_like(z)
x.copy_(pinned, non_blocking=True); y.copy_(pageable); pinned.copy_(x, non_blocking=True); pageable.copy_(y)
w.copy_(z); z.zero_(); torch.cuda.synchronize()
"""


def test_every_direction(recorded: Recordings) -> None:
    found = recorded.shown("directions")
    seen = Counter((row["kind"], row["source_memory"], row["bytes"]) for row in found.rows() if row["bytes"])
    for wanted in (("h2d", "pinned", 1 << 20), ("d2h", "pinned", 1 << 20)):
        assert seen[wanted] == 1, wanted
    for kind in ("h2d", "d2h"):  # the driver may cut a pageable copy
        assert sum(n * count for (k, m, n), count in seen.items() if (k, m) == (kind, "pageable")) >= 3 << 20
    assert [row for row in found.rows(kind="d2d") if row["bytes"] == 5 << 20]
    assert found.rows(kind="sync")


GRAPHS = """
import torch
a = torch.randn(512, 512, device="cuda"); b = a.clone()
for _ in range(3): torch.mm(a, a, out=b)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for _ in range(20): torch.mm(a, a, out=b)
for _ in range(50): graph.replay()
torch.cuda.synchronize()
"""


def test_graphs_as_a_whole(recorded: Recordings) -> None:
    found = recorded.shown("auto")
    launches = found.rows(detail="graph")
    assert len(launches) == 50
    assert all(row["t_end"] > row["t_start"] for row in launches)
    assert len(found.rows(kind="compute", detail=None)) < 100, "no kernel of a replayed graph"
    (said,) = [text for text in found.capture.manifest.warnings if "recorded as a whole" in text]
    assert said.startswith("50 CUDA graph launches")
    nodes = re.search(r"(\d+) kernel nodes", said)
    assert nodes is not None
    assert int(nodes[1]) >= 20


def test_graphs_node_by_node(recorded: Recordings) -> None:
    found = recorded.shown("node")
    assert found.rows(detail="graph") == []
    in_graphs = len(found.rows(kind="compute", detail=None))
    assert 1000 <= in_graphs < 3100, "fifty times twenty products, of one kernel each or a few, and what came before"


ONLY_RANGE = """
import torch
a = torch.randn(4096, 4096, device="cuda"); b = a.clone(); torch.mm(a, a, out=b); torch.cuda.synchronize()
def products(n):
    for _ in range(n): torch.mm(a, a, out=b)
products(7)
torch.cuda.nvtx.range_push("here"); products(11); torch.cuda.nvtx.range_pop()
products(13); torch.cuda.synchronize()
torch.cuda.nvtx.range_push("here"); products(5); torch.cuda.nvtx.range_pop()
torch.cuda.synchronize()
"""


def test_only_in_a_range(recorded: Recordings) -> None:
    """The work of the range is there, also what ended after the range did; the rest is not."""
    found = recorded.shown("range")
    n_kernels = len(found.rows(kind="compute", detail=None))
    assert n_kernels in (16, 32, 48), "eleven products and five, of one kernel each or a few"
    assert len(found.rows(kind="api")) == n_kernels, "and the calls that launched them, alone"


ENDLESS = """
import os, sys, time, torch
a = torch.randn(2048, 2048, device="cuda"); host = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
def work(n):
    for _ in range(n): b = a @ a; c = host.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
work(50); time.sleep(2.5)
"""


ENDINGS = {
    "_exit": ("os._exit(5)", 5),
    "SIGKILL": ("os.kill(os.getpid(), 9)", 128 + signal.SIGKILL),
    "exit": ("sys.exit(6)", 6),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_endings(recorded: Recordings, ending: str) -> None:
    """What was done 2.5 s before the end is there, however it ends."""
    found, code = recorded.shown(ending), ENDINGS[ending][1]
    assert found.code == code
    assert len([row for row in found.rows(kind="h2d") if row["bytes"] == 1 << 20]) == 50
    said = [text for text in found.capture.manifest.warnings if "last words" in text]
    assert bool(said) == (code != 6)


def test_a_fork(recorded: Recordings) -> None:
    found = recorded.shown("fork")
    assert found.code == 0
    assert len([row for row in found.rows(kind="h2d") if row["bytes"] == 1 << 20]) == 100


def test_two_processes(recorded: Recordings) -> None:
    found = recorded.shown("two")
    copies = Counter(row["process"] for row in found.rows(kind="h2d") if row["bytes"] == 1 << 20)
    assert sorted(copies.values()) == [50, 50]


def test_a_program_without_cuda(recorded: Recordings) -> None:
    found = recorded.shown("none")
    assert (found.code, found.output) == (0, "said\n")
    assert not found.folder.exists()
    assert "nothing was recorded" in found.errors


BOTH = """
import torch
a = torch.randn(512, 512, device="cuda")
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
    for _ in range(10): a @ a
    torch.cuda.synchronize()
"""


def test_torch_profiler_inside_goes_without(recorded: Recordings) -> None:
    """CUPTI admits one: the program's own profiler finds it taken, and the program ends well."""
    found = recorded.shown("both")
    assert found.code == 0
    print("kernels:", len(found.rows(kind="compute", detail=None)))


SEEN = {"bytes_h2d", "busy_copy_ns", "hidden_copy_ns", "busy_compute_ns"}


def own_run(own: Path) -> list[str]:
    """Long enough that what its events see beside the copies, some 0.15 ms a pass, is less than 1 %."""
    shape = ["-m", "llama-3.1-8b", "--quant", "BF16", "--layers", "4", "-p", "65536", "-n", "1", "-ub", "32768"]
    words = [sys.executable, "-m", "hprof", "run", "--device", "cuda", *shape, "-r", "2", "--arms", "off,on"]
    return [*words, "--recorder", "native", "-o", str(own)]


def test_hprofs_own_run_seen_from_outside(recorded: Recordings) -> None:
    """Bytes to the byte, busy copy within 1 % of its own records. Its steps count the gaps between their kernels as
    compute and CUPTI does not: of what it calls hidden, no more than those gaps may be missing.
    """
    found = recorded.shown("outside")
    own = found.folder.parent / "own"
    assert found.code == 0
    inside, outside = (hprof.open(str(path)).report().to_json()["cells"][0]["arms"] for path in (own, found.folder))
    for arm in ("off", "on"):
        for name in ("bytes_h2d", "busy_copy_ns", "hidden_copy_ns", "exposed_copy_ns", "busy_compute_ns", "ttft_ns"):
            mine, theirs = (side[arm].get(name) or {} for side in (inside, outside))
            print(arm, name, "own:", mine.get("median"), "outside:", theirs.get("median"))
    for arm in ("off", "on"):
        seen = {name: [side[arm][name]["median"] for side in (inside, outside)] for name in inside[arm] if name in SEEN}
        assert seen["bytes_h2d"][0] == seen["bytes_h2d"][1]
        assert seen["busy_copy_ns"][1] == pytest.approx(seen["busy_copy_ns"][0], rel=0.01)
        (hidden, hidden_outside), (compute, compute_outside) = seen["hidden_copy_ns"], seen["busy_compute_ns"]
        assert 0 <= compute - compute_outside < 0.05 * compute, arm
        assert abs(hidden - hidden_outside) <= compute - compute_outside + 0.01 * hidden, arm
