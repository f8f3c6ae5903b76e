"""Passes are told alike whoever recorded them: windows, phases, and the bytes of explicit copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hprof
from executor.tracing.nvtx_names import (
    DOMAIN,
    PassName,
    StepName,
    UbatchName,
    format_pass,
    format_step,
    format_ubatch,
)
from profiler.capture import Capture
from profiler.importers import TraceInput, import_files
from profiler.importers.base import Imported
from tests.profiler.importers.kineto import traces
from tests.profiler.importers.nsys import exports
from tests.profiler.importers.nsys.exports import KERNEL, MEMCPY, RUNTIME, call, copy, kernel, write_export

_US = 1000
_PASS = PassName(pass_id=4, arm="on", n_ubatch=8, n_depth=16, n_prompt=8, n_gen=2, repetition=1, warmup=False)
# (name, start, end) of ranges, in us; (call's start, row's start and end, bytes) of copies; of kernels without bytes
_RANGES = [
    (format_pass(_PASS), 0, 500),
    (format_ubatch(UbatchName(0, "prefill", 8)), 10, 100),
    (format_step(StepName(0, "whole", "blk.0.ffn_up.weight")), 20, 40),
    (format_ubatch(UbatchName(1, "decode", 1)), 200, 300),
]
_COPIES = [(25, 60, 90, 3000), (210, 240, 250, 700)]
_KERNELS = [(50, 95, 150), (260, 270, 700)]


def _from_nsys(path: Path) -> Imported:
    ranges = [exports.nvtx(start * _US, end * _US, name, domainId=5) for name, start, end in _RANGES]
    starts = [at for at, *_ in (*_COPIES, *_KERNELS)]
    calls = [call(at * _US, (at + 3) * _US, number + 1) for number, at in enumerate(starts)]
    copies = [
        copy(start * _US, end * _US, number + 1, bytes=size, streamId=14)
        for number, (_, start, end, size) in enumerate(_COPIES)
    ]
    kernels = [kernel(start * _US, end * _US, number + 3) for number, (_, start, end) in enumerate(_KERNELS)]
    nvtx = [exports.domain(5, DOMAIN), *ranges]
    return exports.imported(path, {"NVTX_EVENTS": nvtx, RUNTIME: calls, MEMCPY: copies, KERNEL: kernels})


def _from_kineto(path: Path) -> Imported:
    events = [traces.annotation(name, start, end - start) for name, start, end in _RANGES]
    for number, (at, start, end, size) in enumerate(_COPIES, 1):
        events += [traces.call(at, 3, number), traces.h2d(start, end - start, size, correlation=number)]
    for number, (at, start, end) in enumerate(_KERNELS, 3):
        events += [traces.call(at, 3, number), traces.kernel(start, end - start, correlation=number)]
    return traces.imported(path, events)


@pytest.mark.parametrize("read", [_from_nsys, _from_kineto])
def test_one_pass_of_hprof_reads_alike(tmp_path: Path, read: Callable[[Path], Imported]) -> None:
    tables = read(tmp_path).tables
    (row,) = tables["passes"].to_pylist()
    first = min(tables["events"]["t_start"].to_pylist()) - 25 * _US  # times count from the first row, or from 0
    asked = {"arm": "on", "n_ubatch": 8, "n_depth": 16, "n_prompt": 8, "n_gen": 2, "repetition": 1, "warmup": False}
    told = {"pass_id": 4, "order": 0, "boot": 0, "bytes_h2d": 3700, "ttft_ns": 190 * _US, "prefill_ns": 190 * _US}
    window = {"t_start": first, "t_end": first + 700 * _US, "decode_ns": 500 * _US}
    assert {name: value for name, value in row.items() if value is not None} == asked | told | window
    columns = ["pass_id", "phase", "ubatch", "n_tokens", "n_past", "t_start", "t_end"]
    assert [tuple(ubatch.values()) for ubatch in tables["ubatches"].select(columns).to_pylist()] == [
        (4, "prefill", 0, 8, 16, first + 10 * _US, first + 150 * _US),
        (4, "decode", 1, 1, 24, first + 200 * _US, first + 700 * _US),
    ]


def _without_copies(path: Path) -> Path:
    calls = [call(10 * i, 10 * i + 3, i + 1, nameId=4) for i in range(5)] + [call(100, 103, 9)]
    return write_export(path, {RUNTIME: calls, KERNEL: [kernel(200, 900, 9)]})


def test_copies_that_were_called_and_not_recorded_are_unknown(tmp_path: Path) -> None:
    trace = _without_copies(tmp_path / "a.sqlite")
    capture = import_files([TraceInput(trace, "off")], tmp_path / "out")
    (row,) = Capture.open(capture).table("passes").to_pylist()
    assert row["bytes_h2d"] is None
    figures = hprof.open(capture).figures()
    unknown = ["bytes_h2d", "busy_copy_ns", "hidden_copy_ns", "exposed_copy_ns", "idle_ns"]
    assert np.isnan(figures[unknown].to_numpy(dtype=float)).all()
    assert figures["busy_compute_ns"].tolist() == [700]
    manifest = Capture.open(capture).manifest
    assert any(text.startswith("copies: 5 calls of the host copied, and no copy is in") for text in manifest.cannot_say)


def test_no_copy_is_0_bytes_where_nobody_asked_for_one(tmp_path: Path) -> None:
    trace = write_export(tmp_path / "a.sqlite", {RUNTIME: [call(100, 103, 9)], KERNEL: [kernel(200, 900, 9)]})
    figures = hprof.open(import_files([TraceInput(trace, "off")], tmp_path / "out")).figures()
    assert figures["bytes_h2d"].tolist() == [0]


def test_migrations_alone_answer_no_copy_call(tmp_path: Path) -> None:
    tables = {RUNTIME: [call(1, 3, 1, nameId=4)], MEMCPY: [copy(10, 20, copyKind=11)]}
    found = exports.imported(tmp_path, tables)
    assert found.manifest_fields["extra"]["unrecorded_copies"] == 1
