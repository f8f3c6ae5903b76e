"""Rows that are there twice are said, and nothing else is taken for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.importers import read_file
from tests.profiler.importers.kineto import traces
from tests.profiler.importers.nsys.exports import KERNEL, MEMCPY, RUNTIME, Row, call, copy, imported, kernel
from tests.support import shared_path


def _said(warnings: list[str]) -> list[str]:
    return [text for text in warnings if "repeat another one" in text]


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
    assert said.startswith("1 device rows")


@pytest.mark.parametrize("folder", ["nsys", "kineto"])
def test_nothing_is_there_twice_in_real_traces(folder: str) -> None:
    for path in shared_path("data", folder).iterdir():
        if path.suffix in (".sqlite", ".gz"):
            assert _said(read_file(path).warnings) == []
