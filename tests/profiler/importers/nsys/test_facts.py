"""Versions, GPUs, streams and diagnostics, in the tables of every age."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiler.importers import read_file
from tests.profiler.importers.nsys.exports import KERNEL, PID, Row, imported, kernel
from tests.support import shared_path

_STREAM = {"hwId": 0, "vmId": 1, "processId": PID, "contextId": 1}


def _extra(tmp_path: Path, **tables: list[Row]) -> dict[str, Any]:
    found = imported(tmp_path, {KERNEL: [kernel(1, 2), kernel(3, 4, streamId=14)], **tables})
    extra: dict[str, Any] = found.manifest_fields["extra"]
    return extra


def test_the_old_metadata_table(tmp_path: Path) -> None:
    old = [{"name": "EXPORT_SCHEMA_VERSION", "value": "2.9.1"}, {"name": "EXPORT_USER", "value": "somebody"}]
    extra = _extra(tmp_path, EXPORT_META_DATA=old, META_DATA_EXPORT=[])
    assert extra["nsys"]["export"] == {"EXPORT_SCHEMA_VERSION": "2.9.1"}


def test_streams_with_user_names_and_priorities(tmp_path: Path) -> None:
    streams = [
        _STREAM | {"streamId": 7, "priority": 0, "flag": 3},
        _STREAM | {"streamId": 14, "priority": 4294967291, "flag": 2},
        _STREAM | {"streamId": 99, "priority": 0, "flag": 1},
    ]
    extra = _extra(
        tmp_path,
        TARGET_INFO_CUDA_STREAM=streams,
        TARGET_INFO_NVTX_CUDA_STREAM=[_STREAM | {"streamId": 14, "name": "weights <b>", "deviceId": 0}],
    )
    assert extra["streams"] == [
        {"process": PID, "context": 1, "stream": 7, "kind": "null", "name": None, "priority": 0},
        {"process": PID, "context": 1, "stream": 14, "kind": "non-blocking", "name": "weights <b>", "priority": -5},
    ]


def test_the_null_stream_of_old_and_new_tables(tmp_path: Path) -> None:
    streams = [_STREAM | {"streamId": 14, "priority": 0, "flag": 1}]
    old = _extra(
        tmp_path,
        TARGET_INFO_CUDA_STREAM=streams,
        TARGET_INFO_CUDA_NULL_STREAM=[_STREAM | {"streamId": 14, "deviceId": 0}],
    )
    new = _extra(
        tmp_path,
        TARGET_INFO_CUDA_STREAM=streams,
        TARGET_INFO_CUDA_CONTEXT_INFO=[_STREAM | {"nullStreamId": 14, "deviceId": 0}],
    )
    assert old["streams"][0]["kind"] == new["streams"][0]["kind"] == "null"


def test_gpus_driver_and_processor(tmp_path: Path) -> None:
    gpu = {"id": 0, "name": "NVIDIA H200", "totalMemory": 1 << 37, "asyncEngines": 3, "cuDevice": 0}
    system = [
        {"name": "CpuDescription", "value": "unknown"},
        {"name": "NvDriverVersion", "value": "580.95"},
        {"name": "Hostname", "value": "secret-host"},
    ]
    found = imported(tmp_path, {"TARGET_INFO_GPU": [gpu], "TARGET_INFO_SYSTEM_ENV": system})
    machine = found.manifest_fields["machine"]
    assert machine["driver"] == "580.95"
    assert "cpu" not in machine
    assert machine["gpus"][0]["name"] == "NVIDIA H200"
    assert machine["gpus"][0]["memory_mib"] == 1 << 17
    assert "secret-host" not in str(found.manifest_fields)


def test_what_the_profiler_complained_of(tmp_path: Path) -> None:
    rows = [
        {"severity": 1, "text": "Profiling has started."},
        {"severity": 2, "text": "Not all CUDA events might have been collected."},
        {"severity": 2, "text": "Not all CUDA events might have been collected."},
        {"severity": 2, "text": "Something to know."},
        {"severity": 3, "text": "An error."},
    ]
    extra = _extra(tmp_path, DIAGNOSTIC_EVENT=rows)
    assert extra["profiler_errors"] == ["Not all CUDA events might have been collected.", "An error."]
    assert extra["profiler_warnings"] == ["Something to know."]


@pytest.mark.parametrize(
    ("severity", "text", "lowers"),
    [
        (2, "Not all CUDA events might have been collected.", True),
        (2, "Some CUPTI activity records were dropped.", True),
        (2, "Event buffer overflow: events were lost.", True),
        (3, "CUDA trace could not be started.", True),
        (2, "Not all NVTX events might have been collected.", False),
        (2, "Not all OpenGL events might have been collected.", False),
        (2, "Not all OS runtime libraries events might have been collected.", False),
        (
            3,
            "CPU IP/backtrace samples are disabled: perf event paranoid level is 4.",
            False,
        ),
        (
            3,
            "CUDA device 0: Unified Memory cannot be traced on devices without peer-to-peer.",
            False,
        ),
        (2, "Unable to collect CPU kernel IP/backtrace samples. perf event paranoid level is 2.", False),
    ],
)
def test_only_lost_copies_and_kernels_lower_the_figures(tmp_path: Path, severity: int, text: str, lowers: bool) -> None:
    found = imported(tmp_path, {KERNEL: [kernel(1, 2)], "DIAGNOSTIC_EVENT": [{"severity": severity, "text": text}]})
    extra = found.manifest_fields["extra"]
    assert (extra["profiler_errors"], extra["profiler_warnings"]) == (([text], []) if lowers else ([], [text]))
    remark = f"remarks of Nsight Systems itself, none of them about lost copies or kernels: {text}"
    assert (remark in found.cannot_say) is not lowers


@pytest.mark.parametrize(
    ("name", "n_errors"),
    [
        ("3.13.2_2024.5.4_cuda_report14.sqlite", 0),
        ("3.20.3_2025.3.2_runtimeonly_nokernel.sqlite", 1),
        ("3.24.0_2025.5.2_flameox_cudagraph.sqlite", 0),
        ("3.24.14_2026.1.1_MULTISTREAM_async_report1.sqlite", 0),
    ],
)
def test_real_exports_that_lost_nothing_do_not_cry(name: str, n_errors: int) -> None:
    found = read_file(shared_path("data", "nsys", name))
    assert len(found.manifest_fields["extra"]["profiler_errors"]) == n_errors


def test_names_that_string_ids_lacks_are_said(tmp_path: Path) -> None:
    found = imported(tmp_path, {KERNEL: [kernel(1, 2), kernel(3, 4, demangledName=99), kernel(5, 6)]})
    assert "the names of 1 of 3 rows: StringIds does not hold them" in found.cannot_say


@pytest.mark.parametrize(
    ("epoch_ns", "created"),
    [(1_690_709_432_747_674_811, "2023-07-30T09:30:32+00:00"), (5, ""), (2**62, ""), ("2023-07-30", ""), (None, "")],
)
def test_it_was_created_when_its_session_began(epoch_ns: Any, created: str, tmp_path: Path) -> None:
    found = imported(tmp_path, {"TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": epoch_ns}]})
    assert found.manifest_fields["created_utc"] == created
