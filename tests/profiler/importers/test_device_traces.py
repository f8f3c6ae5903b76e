"""Collectives are told apart by the same rule whatever recorded them. Rows that are there twice are said, and
nothing else is taken for them. Launches without work are counted: they show what a trace lost.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from profiler.importers import read_file
from profiler.importers.base import Imported
from profiler.importers.device_traces import mark_collectives
from profiler.schema import EVENTS
from profiler.storage.writer import conform
from tests.profiler.importers.kineto import traces
from tests.profiler.importers.nsys import exports
from tests.profiler.importers.nsys.exports import KERNEL, MEMCPY, RUNTIME, Row, call, copy, imported, kernel
from tests.support import shared_path

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)"
# (name, device, stream): a stream of collectives alone, and one that also computes
WORK = [("gemm", 0, 7), (ALL_REDUCE, 0, 20), (ALL_REDUCE, 0, 20), ("gemm", 1, 20), (ALL_REDUCE, 1, 20)]
DETAILS = [None, "collective", "collective", None, None]


def _from_kineto(path: Path) -> Imported:
    return traces.imported(
        path, [traces.kernel(10 * i, 5, name, device=d, stream=s) for i, (name, d, s) in enumerate(WORK)]
    )


def _from_nsys(path: Path) -> Imported:
    ids = {name: number for number, name in enumerate(("gemm", ALL_REDUCE))}
    rows = [
        exports.kernel(10 * i + 1, 10 * i + 6, demangledName=ids[name], deviceId=device, streamId=stream)
        for i, (name, device, stream) in enumerate(WORK)
    ]
    strings = [{"id": number, "value": name} for name, number in ids.items()]
    return exports.imported(path, {exports.KERNEL: rows, "StringIds": strings})


def _from_stats(path: Path) -> Imported:
    lines = ["Start (ns),Duration (ns),CorrId,Bytes (MB),SrcMemKd,Device,Ctx,Strm,Name"]
    lines += [f'{10 * i},5,{i},,,GPU ({d}),1,{s},"{name}"' for i, (name, d, s) in enumerate(WORK)]
    (path / "trace.csv").write_text("\n".join(lines))
    return read_file(path / "trace.csv")


@pytest.mark.parametrize("read", [_from_kineto, _from_nsys, _from_stats])
def test_a_collective_is_no_compute_where_it_has_a_stream_of_its_own(
    tmp_path: Path, read: Callable[[Path], Imported]
) -> None:
    found = read(tmp_path)
    assert found.tables["events"]["detail"].to_pylist() == DETAILS
    assert found.tables["events"].schema.equals(EVENTS)
    assert any(warning.startswith("2 collective kernels") for warning in found.warnings)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("void ncclAllReduceRingLLKernel_copy_f32(ncclColl)", True),
        ("rcclGenericKernel", True),
        ("mscclKernel_Sum_half", True),
        ("nvjet_nccl_shaped_gemm", False),
        ("void at::native::vectorized_nccl", False),
    ],
)
def test_names_of_collectives(name: str, is_one: bool) -> None:
    columns = {"kind": ["compute"], "name": [name], "t_start": [0], "t_end": [1], "device": [0], "stream": ["7"]}
    events, n_found = mark_collectives(conform("events", columns))
    assert (n_found, events["detail"].to_pylist()) == ((1, ["collective"]) if is_one else (0, [None]))


def test_memsets_copies_and_tables_without_rows_stay(tmp_path: Path) -> None:
    columns = {"kind": ["h2d", "compute"], "name": [ALL_REDUCE] * 2, "detail": [None, "memset"], "stream": ["7"] * 2}
    events = conform("events", columns | {"t_start": [0, 1], "t_end": [1, 2]})
    assert mark_collectives(events) == (events, 0)
    assert mark_collectives(EVENTS.empty_table())[1] == 0
    assert isinstance(mark_collectives(events)[0], pa.Table)


def _said(warnings: list[str]) -> list[str]:
    return [text for text in warnings if " another one in times" in text]


def test_an_nsys_export_appended_to_itself(tmp_path: Path) -> None:
    kernels = [kernel(10, 20, 1), kernel(10, 20, 2, streamId=8), kernel(30, 40, 3)]
    tables: dict[str, list[Row]] = {KERNEL: kernels, MEMCPY: [copy(10, 20, 4)], RUNTIME: [call(1, 2, 1)] * 2}
    assert _said(imported(tmp_path, tables).warnings) == []
    (said,) = _said(imported(tmp_path, tables | {KERNEL: kernels * 2}).warnings)
    assert said.startswith("3 device rows repeat another one")


@pytest.mark.parametrize("other", [{"end": 21}, {"streamId": 8}, {"deviceId": 1}, {"correlationId": 2}])
def test_what_differs_in_anything_is_another_row(tmp_path: Path, other: Row) -> None:
    assert _said(imported(tmp_path, {KERNEL: [kernel(10, 20, 1), kernel(10, 20, 1) | other]}).warnings) == []


def test_rows_without_a_call_may_agree(tmp_path: Path) -> None:
    assert _said(imported(tmp_path, {MEMCPY: [copy(10, 20, 0, copyKind=11)] * 2}).warnings) == []


def test_a_torch_trace_with_an_event_twice(tmp_path: Path) -> None:
    (said,) = _said(traces.imported(tmp_path, [traces.kernel(1, 2), traces.h2d(1, 2), traces.kernel(1, 2)]).warnings)
    assert said.startswith("1 device row repeats")


@pytest.mark.parametrize("folder", ["nsys", "kineto"])
def test_nothing_is_there_twice_in_real_traces(folder: str) -> None:
    for path in shared_path("data", folder).iterdir():
        if path.suffix in (".sqlite", ".gz"):
            assert _said(read_file(path).warnings) == []


def _said_unanswered(cannot_say: list[str]) -> list[str]:
    return [text.split(" of the host")[0] for text in cannot_say if text.startswith("the work of")]


def test_nsys_calls_without_rows(tmp_path: Path) -> None:
    calls = [call(i, i + 1, i + 1) for i in range(4)] + [call(9, 10, 9, nameId=6)]
    kernels = [kernel(20 * i + 20, 20 * i + 30, i + 1) for i in range(4)]
    strings = [{"id": 3, "value": "cudaLaunchKernel_v7000"}, {"id": 6, "value": "cudaStreamSynchronize_v3020"}]
    tables = {"StringIds": strings, RUNTIME: calls}
    assert _said_unanswered(imported(tmp_path, tables | {KERNEL: kernels}).cannot_say) == []
    assert _said_unanswered(imported(tmp_path, tables | {KERNEL: kernels[1:3]}).cannot_say) == [
        "the work of 2 of 4 launches and copies"
    ]
    assert _said_unanswered(imported(tmp_path, tables).cannot_say) == ["the work of 4 of 4 launches and copies"]


def test_torch_calls_without_rows(tmp_path: Path) -> None:
    calls = [traces.call(i, 0.5, i + 1) for i in range(3)]
    rows = [traces.kernel(10 * i + 10, 5, correlation=i + 1) for i in range(3)]
    assert _said_unanswered(traces.imported(tmp_path, [*calls, *rows]).cannot_say) == []
    assert _said_unanswered(traces.imported(tmp_path, [*calls, *rows[:2]]).cannot_say) == [
        "the work of 1 of 3 launches and copies"
    ]


@pytest.mark.parametrize(
    ("folder", "name", "expected"),
    [
        ("nsys", "3.1.2_2023.1.2_memfusion_nvtx.sqlite", []),
        ("nsys", "3.13.2_2024.5.4_cuda_report14.sqlite", []),
        (
            "nsys",
            "3.25.0_2026.2.1_WEIGHTSTREAM_h100_2gpu_1s.sqlite",
            ["the work of 2,280 of 4,372 launches and copies"],
        ),
        ("kineto", "h200_dense_off_then_on.json.gz", []),
    ],
)
def test_real_traces(folder: str, name: str, expected: list[str]) -> None:
    assert _said_unanswered(read_file(shared_path("data", folder, name)).cannot_say) == expected
