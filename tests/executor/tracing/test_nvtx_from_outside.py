"""hprof's ranges as another tool sees them: a stand-in NVTX tool is loaded into a run, and its log held against what
the run recorded of itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from executor.models.load import load_model
from executor.tracing.nvtx_names import PassName, StepName, UbatchName, parse
from profiler.capture import Capture
from tests.support import ROOT

SOURCE = Path(__file__).with_name("nvtx_tool.c")
_INT64 = "2"  # of nvtxPayloadType_t


@dataclass(frozen=True)
class Range:
    """One range with what it lies in."""

    category: str
    payload_type: str
    payload: int
    name: PassName | UbatchName | StepName
    pass_id: int | None
    ubatch: int | None


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("tool") / "nvtx_tool.so"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", str(SOURCE), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


def seen(tool: Path, folder: Path, *arguments: str) -> tuple[list[Range], Capture]:
    """The ranges of domain hprof in a run of its own process, and the run's capture."""
    log, out = folder / "log", folder / "capture"
    environment = os.environ | {
        "NVTX_INJECTION64_PATH": str(tool),
        "NVTX_TOOL_LOG": str(log),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-P", "-m", "hprof", "run", "--device", "cpu", "-r", "1", *arguments, "-o", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ranges_in(log.read_text(encoding="utf-8")), Capture.open(out)


def ranges_in(log: str) -> list[Range]:
    """Ranges in the order of their starts; each pop must close one of its own thread, and none may stay open."""
    found: list[Range] = []
    open_ranges: dict[str, list[PassName | UbatchName | StepName]] = {}
    for line in log.splitlines():
        kind, thread, domain, *rest = line.split(" ", 6)
        assert domain == "hprof"
        stack = open_ranges.setdefault(thread, [])
        if kind == "pop":
            assert stack, "a pop without its push"
            stack.pop()
            continue
        category, payload_type, payload, message = rest
        name = parse(message)
        assert name is not None, f"the importers would not know {message!r}"
        around = next((one.pass_id for one in stack if isinstance(one, PassName)), None)
        ubatch = next((one.ubatch for one in stack if isinstance(one, UbatchName)), None)
        found.append(Range(category, payload_type, int(payload), name, around, ubatch))
        stack.append(name)
    assert not any(open_ranges.values()), "ranges that were pushed and never popped"
    return found


# experts on two devices: whole, selective and flag copies, activations from device to device and to the host in decode
RUN = ("-m", "tiny-moe", "--layers", "2", "--n-devices", "2", "--arms", "off,on", "-p", "64", "-n", "2", "-ub", "64")
Run = tuple[list[Range], Capture]


@pytest.fixture(scope="module")
def run(tool: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return seen(tool, tmp_path_factory.mktemp("run"), *RUN)


def test_every_copy_and_step_of_a_run_has_its_range(run: Run) -> None:
    ranges, capture = run
    columns = ["kind", "pass_id", "layer", "tensor", "name", "bytes", "ubatch"]
    events = [tuple(row.values()) for row in capture.table("events", columns).to_pylist()]
    steps = [(one, one.name) for one in ranges if isinstance(one.name, StepName)]
    copies = Counter(
        (one.pass_id, name.layer, name.tensor, f"copy {name.what}", one.payload)
        for one, name in steps
        if one.category == "copy" and name.what != "token"  # a few bytes, which no row of a capture shows
    )
    computed = Counter(
        (one.pass_id, one.ubatch, name.layer, name.what.removesuffix(" on host"))
        for one, name in steps
        if one.category == "compute"
    )
    # a copy ahead is issued in another ubatch than the one that it serves, or before the first
    assert copies == Counter(tuple(row[1:6]) for row in events if row[0] in ("h2d", "d2h"))
    assert computed == Counter(
        (pass_id, ubatch, layer, name)
        for kind, pass_id, layer, _, name, _, ubatch in events
        if kind in ("compute", "cpu_compute")
    )
    assert {one.payload_type for one, _ in steps if one.category == "copy"} == {_INT64}
    assert {one.category for one, _ in steps} == {"copy", "compute"}
    tokens = Counter(one.pass_id for one, name in steps if name.what == "token")
    assert set(tokens) == set(capture.passes["pass_id"])


def test_a_whole_copys_payload_is_its_weights_bytes(run: Run) -> None:
    ranges, capture = run
    model = load_model(str(capture.manifest.model["name"]))
    whole = [(one, one.name) for one in ranges if isinstance(one.name, StepName) and one.name.what == "whole"]
    assert whole
    for one, name in whole:
        tensors = [f"blk.{name.layer}.{short}.weight" for short in str(name.tensor).split("|")]
        assert one.payload == sum(model.tensors[tensor].n_bytes for tensor in tensors)


def test_copies_of_activations_in_decode_have_ranges(run: Run) -> None:
    ranges, _ = run
    decode = {
        (one.pass_id, one.name.ubatch)
        for one in ranges
        if isinstance(one.name, UbatchName) and one.name.phase == "decode"
    }
    steps = [one for one in ranges if isinstance(one.name, StepName) and (one.pass_id, one.ubatch) in decode]
    copied = Counter(one.name.what for one in steps if isinstance(one.name, StepName) and one.category == "copy")
    assert copied["activations"] >= len(decode)
