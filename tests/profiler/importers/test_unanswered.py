"""Launches without work are counted: they show what a trace lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.importers import read_file
from tests.profiler.importers.kineto import traces
from tests.profiler.importers.nsys.exports import KERNEL, RUNTIME, call, imported, kernel
from tests.support import shared_path


def _said(cannot_say: list[str]) -> list[str]:
    return [text.split(" of the host")[0] for text in cannot_say if text.startswith("the work of")]


def test_nsys_calls_without_rows(tmp_path: Path) -> None:
    calls = [call(i, i + 1, i + 1) for i in range(4)] + [call(9, 10, 9, nameId=6)]
    kernels = [kernel(20 * i + 20, 20 * i + 30, i + 1) for i in range(4)]
    strings = [{"id": 3, "value": "cudaLaunchKernel_v7000"}, {"id": 6, "value": "cudaStreamSynchronize_v3020"}]
    tables = {"StringIds": strings, RUNTIME: calls}
    assert _said(imported(tmp_path, tables | {KERNEL: kernels}).cannot_say) == []
    assert _said(imported(tmp_path, tables | {KERNEL: kernels[1:3]}).cannot_say) == [
        "the work of 2 of 4 launches and copies"
    ]
    assert _said(imported(tmp_path, tables).cannot_say) == ["the work of 4 of 4 launches and copies"]


def test_torch_calls_without_rows(tmp_path: Path) -> None:
    calls = [traces.call(i, 0.5, i + 1) for i in range(3)]
    rows = [traces.kernel(10 * i + 10, 5, correlation=i + 1) for i in range(3)]
    assert _said(traces.imported(tmp_path, [*calls, *rows]).cannot_say) == []
    assert _said(traces.imported(tmp_path, [*calls, *rows[:2]]).cannot_say) == [
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
    assert _said(read_file(shared_path("data", folder, name)).cannot_say) == expected
