"""CSV of `nsys stats`, of both ages of header, with what precedes it and what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.errors import HprofError
from profiler.importers import detect, read_file
from profiler.importers.nsys import stats
from tests.profiler.importers.nsys.exports import events

_OLD = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),"
    "Throughput (MBps),SrcMemKd,DstMemKd,Device,Ctx,Strm,Name\n"
)
_NEW = _OLD.replace("MBps", "MB/s").replace("Ctx,Strm", "Ctx,GreenCtx,Strm")
_PREAMBLE = (
    "NOTICE: Existing SQLite export found: report1.sqlite\n"
    "Processing [report1.sqlite] with [/opt/nvidia/reports/cuda_gpu_trace.py]...\n\n"
    " ** CUDA GPU Trace (cuda_gpu_trace):\n\n"
)
_GPU = "NVIDIA A100-SXM4-80GB (1)"


def _write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def _old(start: str, length: str, name: str, n_bytes: str = "", source: str = "", stream: str = "7") -> str:
    return f'{start},{length},9,,,,,,,,,,{n_bytes},,{source},,{_GPU},1,{stream},"{name}"\n'


HEADER_AND_ROW = _OLD + _old("1000", "500", "gemm")


def test_the_old_header(tmp_path: Path) -> None:
    rows = [
        _old("1000", "500", "void gemm<float, 4>(float*, int)"),
        _old("2000", "700", "[CUDA memcpy HtoD]", "201.327", "Pinned", "14"),
        _old("3000", "10", "[CUDA memset]", "0.004"),
    ]
    path = _write(tmp_path, _OLD + "".join(rows))
    assert detect(path) == "nsys-stats"
    found = read_file(path)
    columns = ("kind", "name", "t_start", "t_end", "bytes", "stream", "device", "source_memory", "detail", "process")
    assert [tuple(row.values()) for row in events(found, *columns)] == [
        ("compute", "void gemm<float, 4>(float*, int)", 0, 500, None, "7", 1, None, None, None),
        ("h2d", "[CUDA memcpy HtoD]", 1000, 1700, 201_327_000, "14", 1, "pinned", None, None),
        ("compute", "[CUDA memset]", 2000, 2010, 4000, "7", 1, None, "memset", None),
    ]
    assert found.manifest_fields["machine"] == {"gpus": [{"index": 1, "name": "NVIDIA A100-SXM4-80GB"}]}
    assert any("better than 1,000 bytes" in text for text in found.cannot_say)


def test_the_new_header_after_a_preamble(tmp_path: Path) -> None:
    row = f'1000,500,9,,,,,,,,,,1.5,,Pageable,Device,{_GPU},1,,7,"[CUDA memcpy Host-to-Device]"\n'
    found = read_file(_write(tmp_path, _PREAMBLE + _NEW + row))
    assert events(found, "kind", "bytes", "source_memory") == [
        {"kind": "h2d", "bytes": 1_500_000, "source_memory": "pageable"}
    ]


@pytest.mark.parametrize(
    ("name", "kind", "detail"),
    [
        ("[CUDA memcpy DtoH]", "d2h", None),
        ("[CUDA memcpy Device-to-Host]", "d2h", None),
        ("[CUDA memcpy DtoD]", "d2d", None),
        ("[CUDA memcpy Peer-to-Peer]", "d2d", "peer"),
        ("[CUDA memcpy Unified Host-to-Device]", "h2d", "uvm"),
        ("[CUDA Unified Memory memcpy DtoH]", "d2h", "uvm"),
    ],
)
def test_copy_names(tmp_path: Path, name: str, kind: str, detail: str | None) -> None:
    found = read_file(_write(tmp_path, _OLD + _old("1", "1", name, "1.0")))
    assert events(found, "kind", "detail") == [{"kind": kind, "detail": detail}]


def test_other_time_units_stay_exact(tmp_path: Path) -> None:
    header = _OLD.replace("(ns)", "(us)")
    found = read_file(
        _write(tmp_path, header + _old("1779630014975716.427", "0.001", "k") + _old("1779630014975716.430", "2", "k"))
    )
    assert [(row["t_start"], row["t_end"]) for row in events(found, "t_start", "t_end")] == [(0, 1), (3, 2003)]


def test_a_size_that_rounds_to_nothing_is_not_known(tmp_path: Path) -> None:
    assert events(read_file(_write(tmp_path, _OLD + _old("1", "1", "[CUDA memcpy HtoD]", "0.000"))), "bytes") == [
        {"bytes": None}
    ]


def test_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    rows = [
        _old("1", "1", "k"),
        _old("x", "1", "k"),
        _old("5", "", "k"),
        _old("7", "1", "[CUDA memcpy sideways]"),
        _old("9", "1e3", "k"),
        "1,2,3\n",
    ]
    found = read_file(_write(tmp_path, _OLD + "".join(rows)))
    assert dict(found.dropped) == {
        "row: wrong number of cells": 1,
        "row: unknown operation": 1,
        "row: no times": 3,
    }
    assert found.tables["events"].num_rows == 1


def test_without_a_header_it_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(HprofError, match="cuda_gpu_trace"):
        read_file(_write(tmp_path, "a,b\n1,2\n"), "nsys-stats")


def test_a_header_alone_imports_and_says_so(tmp_path: Path) -> None:
    found = read_file(_write(tmp_path, _OLD))
    assert found.tables["events"].num_rows == 0
    assert any("no device work" in warning for warning in found.warnings)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.text(max_size=12), min_size=20, max_size=20), max_size=6), st.binary(max_size=40))
def test_any_cells_and_any_tail(tmp_path: Path, rows: list[list[str]], tail: bytes) -> None:
    path = tmp_path / "any.csv"
    text = _OLD + _old("1", "1", "k") + "".join(",".join(row) + "\n" for row in rows)
    path.write_bytes(text.encode("utf-8", "replace") + tail)
    try:
        found: str | int = read_file(path, "nsys-stats").tables["events"].num_rows
    except HprofError as error:
        found = str(error)
    assert "any.csv" in found if isinstance(found, str) else found >= 1


@pytest.mark.parametrize(("name", "n_rows"), [("[CUDA mem", 1), ("[CUDA memcpy Host-to-De", 1), ("void gem", 2)])
def test_a_file_that_ends_inside_a_row_takes_no_copy_for_a_kernel(tmp_path: Path, name: str, n_rows: int) -> None:
    cut = HEADER_AND_ROW + _old("2000", "500", name, "1.0", "Pinned").rstrip('"\n')
    found = read_file(_write(tmp_path, cut))
    assert found.tables["events"].num_rows == n_rows
    assert found.dropped == ({} if n_rows == 2 else {"row: unknown operation": 1})
    assert any("does not end with a line break" in text for text in found.warnings)


def test_an_unknown_unit_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(HprofError, match=r"trace\.csv has its column 'Start' in 'fortnight'.*--timeunit ns"):
        read_file(_write(tmp_path, HEADER_AND_ROW.replace("(ns)", "(fortnight)")))


@pytest.mark.parametrize("value", ["CUDA memcpy Host-to-Device", "kernel"])
def test_a_report_of_sums_is_refused_with_the_report_that_would_do(tmp_path: Path, value: str) -> None:
    path = _write(
        tmp_path,
        "Processing [r.sqlite] with [/opt/reports/cuda_gpu_mem_time_sum.py]...\n"
        "Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation\n"
        f"96.6,2472025475,27260,90683.3,1152.0,703,157221749,1705417.2,[{value}]\n",
    )
    assert detect(path) == "nsys-stats"
    with pytest.raises(HprofError, match=r"says not when anything ran.*--report cuda_gpu_trace --format csv"):
        read_file(path)


def test_more_rows_than_there_is_memory_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path, HEADER_AND_ROW + _old("2000", "500", "gemm"))
    monkeypatch.setattr(stats, "_MAX_ROWS", 3)
    assert read_file(path).tables["events"].num_rows == 2
    monkeypatch.setattr(stats, "_MAX_ROWS", 2)
    with pytest.raises(HprofError, match="more than 2 rows, too many for a CSV of `nsys stats`; import the SQLite"):
        read_file(path)


@pytest.mark.parametrize("n_bytes", [1, 2, 3, 5, 7])
def test_a_character_is_whole_wherever_the_file_is_cut_to_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_bytes: int
) -> None:
    monkeypatch.setattr(stats, "_DECODED_BYTES", n_bytes)
    path = tmp_path / "trace.csv"
    path.write_bytes((_OLD + _old("1000", "500", "gemm \u00df \u2713 \U0001f600")).encode() + b"\xff\xe2\x9c")
    assert events(read_file(path), "name") == [{"name": "gemm \u00df \u2713 \U0001f600"}]
