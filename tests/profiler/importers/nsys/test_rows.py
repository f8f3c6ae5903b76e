"""Kernels, copies, memsets, graphs, calls and waits of hand-made exports become the right events."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.profiler.importers.nsys.exports import (
    GLOBAL_PID,
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    PID,
    RUNTIME,
    SYNC,
    call,
    copy,
    device_row,
    events,
    imported,
    kernel,
)


def test_a_kernel_has_its_demangled_name_and_its_place(tmp_path: Path) -> None:
    found = imported(tmp_path, {KERNEL: [kernel(1000, 3000, 7, deviceId=2, streamId=14)]})
    assert events(found, "kind", "name", "process", "device", "stream", "t_start", "t_end", "correlation_id") == [
        {
            "kind": "compute",
            "name": "matmul(float*)",
            "process": PID,
            "device": 2,
            "stream": "14",
            "t_start": 0,
            "t_end": 2000,
            "correlation_id": 7,
        }
    ]


@pytest.mark.parametrize(
    ("oper", "kind", "detail"),
    [
        (1, "h2d", None),
        (2, "d2h", None),
        (3, "h2d", None),
        (4, "d2h", None),
        (7, "d2d", None),
        (8, "d2d", None),
        (10, "d2d", "peer"),
        (11, "h2d", "uvm"),
        (12, "d2h", "uvm"),
        (13, "d2d", "uvm"),
    ],
)
def test_copy_kinds(tmp_path: Path, oper: int, kind: str, detail: str | None) -> None:
    found = imported(tmp_path, {MEMCPY: [copy(10, 20, copyKind=oper)]})
    assert events(found, "kind", "detail", "bytes") == [{"kind": kind, "detail": detail, "bytes": 1000}]


@pytest.mark.parametrize(
    ("kind", "memory"),
    [(0, "pageable"), (1, "pinned"), (2, "device"), (3, "device"), (4, "managed"), (5, "device"), (6, "managed")],
)
def test_memory_kinds_are_nsys_own_numbers(tmp_path: Path, kind: int, memory: str) -> None:
    found = imported(tmp_path, {MEMCPY: [copy(10, 20, srcKind=kind)]})
    assert events(found, "source_memory") == [{"source_memory": memory}]


@pytest.mark.parametrize("kind", [7, 99, -1, None])
def test_an_unknown_memory_kind_is_null(tmp_path: Path, kind: int | None) -> None:
    assert events(imported(tmp_path, {MEMCPY: [copy(10, 20, srcKind=kind)]}), "source_memory") == [
        {"source_memory": None}
    ]


def test_a_memset_computes_nothing_that_counts_and_a_graph_neither(tmp_path: Path) -> None:
    tables = {MEMSET: [device_row(10, 20, bytes=64, value=0)], GRAPH: [device_row(30, 50, graphId=1, graphExecId=2)]}
    found = imported(tmp_path, tables)
    assert events(found, "kind", "name", "detail", "bytes") == [
        {"kind": "compute", "name": "memset", "detail": "memset", "bytes": 64},
        {"kind": "compute", "name": "CUDA graph", "detail": "graph", "bytes": None},
    ]
    assert any("1 CUDA graph launch was recorded as a whole" in warning for warning in found.warnings)


def test_calls_lose_the_version_of_their_name_and_lie_on_their_thread(tmp_path: Path) -> None:
    found = imported(tmp_path, {RUNTIME: [call(5, 9, 3)], KERNEL: [kernel(20, 30, 3)]})
    assert events(found, "kind", "name", "stream", "device", "correlation_id")[0] == {
        "kind": "api",
        "name": "cudaLaunchKernel",
        "stream": "thread 111",
        "device": None,
        "correlation_id": 3,
    }


def test_synchronisations_without_a_stream(tmp_path: Path) -> None:
    rows = [
        device_row(10, 90, 4, syncType=3, eventId=0xFFFFFFFF),
        device_row(95, 96, 5, syncType=1, eventId=7, streamId=0xFFFFFFFF),
        device_row(97, 98, 6, syncType=77, eventId=7),
    ]
    assert events(imported(tmp_path, {SYNC: rows}), "kind", "name", "stream") == [
        {"kind": "sync", "name": "stream synchronize", "stream": "7"},
        {"kind": "sync", "name": "event synchronize", "stream": None},
        {"kind": "sync", "name": "synchronize", "stream": "7"},
    ]


def test_two_ranks_keep_apart_what_has_the_same_numbers(tmp_path: Path) -> None:
    other = GLOBAL_PID + (1 << 24)
    tables = {
        KERNEL: [kernel(100, 110, 9), kernel(100, 130, 9, globalPid=other, deviceId=1)],
        RUNTIME: [call(1, 2, 9), call(50, 60, 9, globalTid=other | 112)],
    }
    rows = events(imported(tmp_path, tables), "kind", "process", "device", "t_end")
    assert [row for row in rows if row["kind"] == "compute"] == [
        {"kind": "compute", "process": PID, "device": 0, "t_end": 109},
        {"kind": "compute", "process": PID + 1, "device": 1, "t_end": 129},
    ]


def test_one_stream_number_in_two_contexts_is_two_streams(tmp_path: Path) -> None:
    rows = [kernel(0, 5), kernel(1, 6, contextId=2), kernel(2, 7, streamId=13)]
    assert [row["stream"] for row in events(imported(tmp_path, {KERNEL: rows}), "stream")] == ["1/7", "2/7", "13"]


def test_times_may_be_negative_and_start_at_zero_in_the_capture(tmp_path: Path) -> None:
    found = imported(tmp_path, {KERNEL: [kernel(-10_600_000_000, -10_599_999_000), kernel(5, 6)]})
    assert [row["t_start"] for row in events(found, "t_start")] == [0, 10_600_000_005]
    assert found.manifest_fields["extra"]["origin_ns"] == -10_600_000_000


def test_epoch_times_stay_exact(tmp_path: Path) -> None:
    base = 1_779_630_014_975_716_427  # odd: a float would round it
    found = imported(tmp_path, {KERNEL: [kernel(base, base + 1), kernel(base + 3, base + 7)]})
    assert [(row["t_start"], row["t_end"]) for row in events(found, "t_start", "t_end")] == [(0, 1), (3, 7)]


def test_short_names_serve_where_there_are_no_long_ones(tmp_path: Path) -> None:
    row = {name: value for name, value in kernel(1, 2).items() if name != "demangledName"}
    assert events(imported(tmp_path, {KERNEL: [row]}), "name") == [{"name": "matmul"}]


def test_hand_made_exports_without_global_ids(tmp_path: Path) -> None:
    row = {name: value for name, value in kernel(100, 110, 9).items() if name != "globalPid"}
    found = imported(tmp_path, {KERNEL: [row], RUNTIME: [call(1, 2, 9)]})
    assert events(found, "process")[1] == {"process": None}
    assert any("no globalPid" in text for text in found.cannot_say)
    assert not any("API calls are not in the export" in text for text in found.cannot_say)


def test_trimmed_exports_keep_device_work_whose_call_is_gone(tmp_path: Path) -> None:
    found = imported(tmp_path, {KERNEL: [kernel(100, 110, 9), kernel(120, 130, 10)], RUNTIME: [call(1, 2, 9)]})
    assert len(events(found, "kind")) == 3
    assert any("1 of 2 device operations" in text for text in found.cannot_say)


def test_kernels_of_a_table_without_device_numbers_stay_on_a_device_of_no_number(tmp_path: Path) -> None:
    """As other programs write small exports for their own tests."""
    bare = [{"start": start, "end": start + 50, "demangledName": 1, "streamId": 7} for start in (100, 300)]
    found = imported(tmp_path, {KERNEL: bare})
    assert events(found, "kind", "device", "t_start", "t_end") == [
        {"kind": "compute", "device": None, "t_start": 0, "t_end": 50},
        {"kind": "compute", "device": None, "t_start": 200, "t_end": 250},
    ]
    assert found.dropped == {}
