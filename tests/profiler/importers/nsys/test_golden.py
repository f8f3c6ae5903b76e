"""Real exports of every age give the independent figures exactly."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profiler.capture import Capture
from profiler.findings import find
from profiler.importers import import_files, read_file
from profiler.importers.nsys.build import projection
from profiler.importers.nsys.recorded import read_trace_rows
from profiler.importers.nsys.sqlite import SqliteTables
from profiler.metrics import CopyFigures, DeviceFigures
from profiler.report.build import build_report
from tests.profiler.importers.nsys.exports import KERNEL, MEMCPY, copy, kernel, write_export
from tests.support import ROOT, shared_path

_FOLDER = ROOT.parent / "shared" / "data" / "nsys"
_DIRECTIONS = {"HtoD": "h2d", "DtoH": "d2h", "DtoD": "d2d", "UVM_HtoD": "uvm_h2d"}


@cache
def _golden() -> dict[str, Any]:
    path = _FOLDER / "golden.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


_FILES = sorted(_golden()) or ["golden.json"]


@pytest.fixture
def capture(request: pytest.FixtureRequest, tmp_path: Path) -> Capture:
    """The import of one sample."""
    return Capture.open(import_files([shared_path("data", "nsys", request.param)], tmp_path / "capture"))


@pytest.mark.parametrize(("capture", "name"), [(name, name) for name in _FILES], indirect=["capture"])
def test_kernels_bytes_unions_and_overlaps_are_exact(capture: Capture, name: str) -> None:
    devices = {f"pid{d.process}/dev{d.device}": d for d in build_report(capture).devices}
    expected = _golden()[name]["per_device"]
    assert devices.keys() == expected.keys()
    for key, figures in expected.items():
        _check_device(devices[key], figures)


def _check_device(device: DeviceFigures, expected: dict[str, Any]) -> None:
    assert device.kernels == expected["kernels"]
    assert device.compute_busy_ns == expected["kernel_union_ns"]
    assert device.compute_streams == expected["kernel_streams"]
    copies = {_DIRECTIONS[name]: figures for name, figures in expected.items() if name in _DIRECTIONS}
    assert device.copies.keys() == copies.keys()
    for direction, figures in copies.items():
        _check_copies(device.copies[direction], figures, is_managed=direction.startswith("uvm"))


def _check_copies(found: CopyFigures, expected: dict[str, Any], *, is_managed: bool) -> None:
    assert found.count == expected["n"]
    assert found.bytes == expected["bytes"]
    assert found.busy_ns == expected["union_ns"]
    # Kernels that wait for pages cover their migration, and hide nothing.
    assert found.hidden_ns == (None if is_managed else expected["overlap_with_kernels_ns"])
    assert found.streams == expected["streams"]


def test_a_small_export_gives_the_figures_of_pencil_and_paper(tmp_path: Path) -> None:
    """Kernels at 10-20 and 15-40 on two streams; copies of 1000 bytes at 0-12, 30-50 and 45-60; one of them d2h."""
    kernels = [kernel(10, 20), kernel(15, 40, streamId=9)]
    copies = [copy(0, 12, streamId=8), copy(30, 50, streamId=8), copy(45, 60, copyKind=2, srcKind=2, dstKind=1)]
    export = write_export(tmp_path / "x.sqlite", {KERNEL: kernels, MEMCPY: copies})
    [device] = build_report(Capture.open(import_files([export], tmp_path / "capture"))).devices
    assert (device.kernels, device.compute_busy_ns, device.compute_streams) == (2, 30, [7, 9])
    figures = {name: (c.count, c.bytes, c.busy_ns, c.hidden_ns, c.streams) for name, c in device.copies.items()}
    assert figures == {"h2d": (2, 2000, 32, 12, [8]), "d2h": (1, 1000, 15, 0, [7])}


@pytest.mark.parametrize("name", _FILES)
def test_the_schema_is_told(name: str) -> None:
    found = read_file(shared_path("data", "nsys", name))
    export = found.manifest_fields["extra"]["nsys"]["export"]
    assert export["EXPORT_SCHEMA_VERSION"] == _golden()[name]["schema"]
    assert export["EXPORT_PRODUCT_VERSION"] == _golden()[name]["product"]
    assert not found.dropped


@pytest.mark.parametrize(
    ("name", "n_ranges", "n_owning", "projected_ns"),
    [
        ("3.25.0_2026.2.1_AB_before_mfu_2gpu.sqlite", 19_118, 9_621, 1_130_895_551),
        ("3.25.0_2026.2.1_WEIGHTSTREAM_h100_2gpu_1s.sqlite", 16_782, 3_242, 4_269_307_236),
        ("3.1.2_2023.1.2_memfusion_nvtx.sqlite", 59, 41, 12_879_097),
    ],
)
def test_ranges_project_as_nsys_stats_does(name: str, n_ranges: int, n_owning: int, projected_ns: int) -> None:
    recorded = read_trace_rows(SqliteTables(shared_path("data", "nsys", name)), Counter())
    work = projection(recorded, recorded.ranges.spans)
    owning = work.n_ops > 0
    assert len(recorded.ranges) == n_ranges
    assert np.count_nonzero(owning) == n_owning
    assert (work.last_ns - work.first_ns)[owning].sum() == projected_ns


def test_an_export_without_device_work_imports_and_says_so() -> None:
    found = read_file(shared_path("data", "nsys", "3.20.3_2025.3.2_runtimeonly_nokernel.sqlite"))
    assert found.tables["events"].num_rows == 2
    assert any("no device work" in warning for warning in found.warnings)
    assert "Not all CUDA events might have been collected." in found.manifest_fields["extra"]["profiler_errors"]


@pytest.mark.parametrize("capture", ["3.25.0_2026.2.1_WEIGHTSTREAM_h100_2gpu_1s.sqlite"], indirect=True)
def test_weight_streaming_is_found_and_explained(capture: Capture) -> None:
    inline = {finding.rule: finding for finding in find(capture)}["copies-on-compute-stream"]
    assert inline.severity == "serious"
    for label, stream in (("GPU 0 of process 111", "7"), ("GPU 1 of process 112", "15")):
        told = f"{label}, over the trace: 23.7 GiB pinned H2D in 225 copies at 27.7 GB/s on stream {stream}, which also"
        assert told in inline.evidence
    assert inline.evidence.count("0 ns (0 %) hidden") == 2
    assert "on a stream of its own" in inline.advice
    assert (
        "only 22.4 ms of compute have no copy beside them, so that hides at most 2.4 % of the 921 ms" in inline.advice
    )
