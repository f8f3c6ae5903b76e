"""Rows find their own process and call, also where traces of several ranks were merged into one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiler.capture import Capture
from profiler.importers import import_files
from profiler.report.build import build_report
from tests.profiler.importers.kineto.traces import Event, annotation, call, h2d, imported, kernel, rows, write, x


def _rank(rank: int, host_pid: Any, device_pid: Any, first_id: int = 1) -> list[Event]:
    """Copies of rank 0 lie beside the kernels of rank 1, and the other way round: neither rank hides any."""
    events = []
    for i in range(30):
        t = 1000.5 + 700 * i
        copy_at, kernel_at = (0, 320) if rank else (320, 0)
        correlation = first_id + 2 * i
        events += [
            call(t + copy_at - 20, 3, correlation, pid=host_pid) | {"name": "cudaMemcpyAsync"},
            h2d(t + copy_at, 300, 6_000_000, correlation=correlation) | {"pid": device_pid},
            call(t + kernel_at - 20, 3, correlation + 1, pid=host_pid),
            kernel(t + kernel_at, 300, correlation=correlation + 1) | {"pid": device_pid},
        ]
    return events


def _hidden_by_device(
    tmp_path: Path, events: list[Event]
) -> dict[tuple[int | None, int | None], tuple[int, float | None]]:
    """(process, device) -> (copies, share of their time that is hidden)."""
    capture = import_files([write(tmp_path / "merged.json", events)], tmp_path / "out", force=True)
    report = build_report(Capture.open(capture))
    return {
        (device.process, device.device): (copies.count, copies.hidden_ratio)
        for device in report.devices
        for copies in [device.copies["h2d"]]
    }


_APART: dict[tuple[int | None, int | None], tuple[int, float | None]] = {(1000, 0): (30, 0.0), (2000, 0): (30, 0.0)}


def test_labelled_ranks_are_two_devices(tmp_path: Path) -> None:
    events = [*_rank(0, "[TP00] 1000", "[TP00] 0"), *_rank(1, "[TP01] 2000", "[TP01] 0")]
    assert _hidden_by_device(tmp_path, events) == _APART
    found = imported(tmp_path, events)
    assert found.manifest_fields["extra"]["processes"] == {"1000": "[TP00] 1000", "2000": "[TP01] 2000"}


def test_labels_keep_apart_processes_of_one_number(tmp_path: Path) -> None:
    events = [*_rank(0, "rank0 1", "rank0 0"), *_rank(1, "rank1 1", "rank1 0")]
    assert _hidden_by_device(tmp_path, events) == {(1, 0): (30, 0.0), (2, 0): (30, 0.0)}


def test_ranks_without_labels_are_told_apart_by_the_order_of_the_file(tmp_path: Path) -> None:
    events = [*_rank(0, 1000, 0), *_rank(1, 2000, 0)]
    assert _hidden_by_device(tmp_path, events) == _APART
    by_time = sorted(events, key=lambda event: float(event["ts"]))
    assert _hidden_by_device(tmp_path, by_time) == _APART
    found = imported(tmp_path, events)
    assert any(
        text.startswith("120 device rows carry an id that calls of several processes") for text in found.warnings
    )


def test_an_id_of_a_copy_in_one_rank_and_of_a_kernel_in_the_other(tmp_path: Path) -> None:
    # One id ahead: what is a copy in rank 0 is a kernel in rank 1.
    events = [*_rank(0, 1000, 0), *_rank(1, 2000, 0, first_id=2)]
    assert _hidden_by_device(tmp_path, events) == _APART


def test_rows_that_could_be_of_either_process_are_of_none(tmp_path: Path) -> None:
    events = [call(1, 1, 5, pid=1000), call(1, 1, 5, pid=2000), kernel(9, 1, correlation=5)]
    found = imported(tmp_path, events)
    assert [row["process"] for row in rows(found) if row["kind"] == "compute"] == [None]
    assert any(text.startswith("1 device row carries an id that") for text in found.warnings)


def test_processes_with_ids_of_their_own_need_no_telling(tmp_path: Path) -> None:
    found = imported(tmp_path, [*_rank(0, 1000, 0), *_rank(1, 2000, 1, first_id=1001)])
    assert not [text for text in found.warnings if "several processes" in text]
    assert {row["process"] for row in rows(found) if row["kind"] == "compute"} == {1000, 2000}


def test_ranges_of_a_labelled_process_hold_its_own_work_alone(tmp_path: Path) -> None:
    events = [*_rank(0, "[TP00] 1000", "[TP00] 0"), *_rank(1, "[TP01] 2000", "[TP01] 0")]
    events += [annotation("ubatch=3 phase=prefill n_tokens=8", 0, 10**6) | {"pid": "[TP01] 2000"}]
    found = rows(imported(tmp_path, events))
    assert {(row["process"], row["ubatch"]) for row in found if row["kind"] == "h2d"} == {(1000, None), (2000, 3)}


def test_old_texts_are_devices_and_no_labels(tmp_path: Path) -> None:
    events = [call(0, 1, 1, pid=400), x("Kernel", "gemm", 1, 2, pid="GPU 2", tid="stream 7", correlation=1)]
    found = imported(tmp_path, events)
    (row,) = [row for row in rows(found) if row["kind"] == "compute"]
    assert (row["process"], row["device"]) == (400, 2)
    assert "processes" not in found.manifest_fields["extra"]


def _xpu(name: str, ts: float, dur: float, correlation: int, **args: Any) -> list[Event]:
    """A row of a SYCL queue and its call, as Intel's builds of torch write them."""
    queue = {"device": 0, "sycl queue": 64, "correlation": correlation}
    called = x("xpu_runtime", "urEnqueueUSMMemcpy", ts - 5, 3, pid=5, tid=5, correlation=correlation)
    return [called, x("gpu_memcpy", name, ts, dur, tid=64, **queue, **args)]


@pytest.mark.parametrize(
    ("ends", "kind", "memory"),
    [
        ("M2D", "h2d", "pageable"),
        ("H2D", "h2d", "pinned"),
        ("D2M", "d2h", "device"),
        ("D2H", "d2h", "device"),
        ("D2D", "d2d", "device"),
    ],
)
def test_copies_of_intel_gpus(tmp_path: Path, ends: str, kind: str, memory: str) -> None:
    found = rows(imported(tmp_path, _xpu(f"zeCommandListAppendMemoryCopy({ends})", 20, 10, 1, bytes=64)))
    shown = [(row["kind"], row["source_memory"], row["stream"], row["process"], row["bytes"]) for row in found]
    assert sorted(shown) == [("api", None, "thread 5", 5, None), (kind, memory, "64", 5, 64)]


def test_a_copy_that_says_no_direction_is_counted(tmp_path: Path) -> None:
    found = imported(tmp_path, _xpu("zeCommandListAppendMemoryCopy(S2D)", 20, 10, 1))
    assert dict(found.dropped) == {"copy: of an unknown direction": 1}


def test_copies_whose_direction_nothing_tells_are_unknown_and_not_none(tmp_path: Path) -> None:
    """A step with a kernel and a copy that is called by the host's call alone: bytes and idle time are null, not 0."""
    events = [
        annotation("ProfilerStep#1", 0, 90),
        call(1, 5, 1),
        kernel(20, 30, correlation=1),
        x("gpu_memcpy", "hipMemcpyAsync", 55, 10, device=0, stream=7),
    ]
    report = build_report(Capture.open(import_files([write(tmp_path / "t.json", events)], tmp_path / "c")))
    told = report.to_json()
    figures = told["cells"][0]["arms"]["trace"]
    assert [figures[name] for name in ("bytes_h2d", "busy_copy_ns", "hidden_ratio", "idle_ns")] == [None] * 4
    assert set(told["devices"][0]["copies"]["h2d"].values()) == {None}
    assert any("the trace has 1 copy, and none says its direction" in text for text in report.cannot_say)
    assert "no copy" not in report.summary


@pytest.mark.parametrize(
    ("category", "said"),
    [("mtia_runtime", "of MTIA devices"), ("hpu_op", "of Gaudi"), ("cpu_op", "ProfilerActivity.CUDA (or XPU)")],
)
def test_a_trace_of_other_devices_is_not_asked_about_cuda(tmp_path: Path, category: str, said: str) -> None:
    (warning,) = imported(tmp_path, [x(category, "run", 1, 2)]).warnings
    assert said in warning


@pytest.mark.parametrize("ts", ["1e999999999", "-1e999999999", "9" * 60])
def test_times_beyond_all_bounds_are_no_times(tmp_path: Path, ts: str) -> None:
    found = imported(tmp_path, [kernel(1, 1), kernel(1, 1) | {"ts": ts}])
    assert (found.tables["events"].num_rows, dict(found.dropped)) == (1, {"kernel: no times": 1})
