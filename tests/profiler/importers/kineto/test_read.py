"""Rows of every age and vendor come out the same; nothing disappears without a count."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from executor.errors import HprofError
from executor.tracing.nvtx_names import PassName, StepName, UbatchName, format_pass, format_step, format_ubatch
from hprof.opened import OpenedCapture
from profiler.importers import import_files
from profiler.importers.base import ImportOptions
from profiler.importers.kineto import read
from profiler.metrics import FIGURES
from profiler.report.build import build_report
from profiler.schema import EVENTS, PASSES, UBATCHES
from tests.profiler.importers.kineto.traces import annotation, call, h2d, imported, kernel, rows, write, x


def test_tables_have_the_exact_schemas(tmp_path: Path) -> None:
    result = imported(
        tmp_path,
        [
            kernel(1, 2),
            h2d(3, 4),
            annotation("ProfilerStep#1", 0, 9),
            annotation("ubatch=0 phase=decode n_tokens=1", 1, 2),
        ],
    )
    assert result.source == "kineto"
    assert result.tables["events"].schema.equals(EVENTS)
    assert result.tables["passes"].schema.equals(PASSES)
    assert result.tables["ubatches"].schema.equals(UBATCHES)


def test_a_copy_row_says_everything(tmp_path: Path) -> None:
    (row,) = rows(imported(tmp_path, [h2d(10.001, 2.5, 4096, device=3, stream=22, correlation=77)]))
    assert row | {
        "kind": "h2d", "device": 3, "stream": "22", "bytes": 4096, "t_start": 10001, "t_end": 12501,
        "correlation_id": 77, "source_memory": "pinned", "detail": None,
    } == row  # fmt: skip


@pytest.mark.parametrize(
    ("cat", "name", "args", "kind", "memory", "detail"),
    [
        ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", {}, "h2d", "pageable", None),
        ("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", {}, "d2h", "device", None),
        ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", {}, "d2d", "device", None),
        ("gpu_memcpy", "Memcpy PtoP (Device -> Device)", {"inDevice": 1}, "d2d", "device", "peer"),
        ("Memcpy", "Memcpy HtoD (Pinned -> Device)", {}, "h2d", "pinned", None),
        ("gpu_memcpy", "Memcpy HtoD (Host -> Device)", {"kind": "HtoD"}, "h2d", None, None),
        ("gpu_memcpy", "CopyHostToDevice", {}, "h2d", None, None),
        ("gpu_memcpy", "hipMemcpyWithStream", {"copyKind": "DtoH"}, "d2h", None, None),
        ("gpu_memset", "Memset (Device)", {}, "compute", None, "memset"),
        ("Memset", "Memset (Device)", {}, "compute", None, "memset"),
        ("Kernel", "gemm", {}, "compute", None, None),
        ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", {}, "compute", None, "collective"),
        ("cuda_sync", "Stream Wait Event", {}, "sync", None, None),
        ("cuda_sync", "Context Sync", {"stream": -1}, "sync", None, None),
    ],
)
def test_categories_and_names_of_all_ages(
    tmp_path: Path, cat: str, name: str, args: dict[str, Any], kind: str, memory: str | None, detail: str | None
) -> None:
    (row,) = rows(imported(tmp_path, [x(cat, name, 1, 2, **args)]))
    assert (row["kind"], row["source_memory"], row["detail"]) == (kind, memory, detail)


def test_rocm_sizes_and_directions_may_stand_on_the_host_call_alone(tmp_path: Path) -> None:
    events = [
        x("gpu_memcpy", "hipMemcpyAsync", 5, 1, device=0, stream=1, correlation=3),
        x("cuda_runtime", "hipMemcpyAsync", 1, 1, pid=400, tid=9, correlation=3, bytes="65536", kind="1"),
    ]
    copy = rows(imported(tmp_path, events))[0]
    assert (copy["kind"], copy["bytes"], copy["process"]) == ("h2d", 65536, 400)


def test_devices_streams_and_processes_may_be_words(tmp_path: Path) -> None:
    (row,) = rows(imported(tmp_path, [x("Kernel", "gemm", 1, 2, pid="GPU 2", tid="stream 7")]))
    assert (row["device"], row["stream"]) == (2, "7")


def test_host_calls_stand_on_their_threads(tmp_path: Path) -> None:
    (row,) = rows(imported(tmp_path, [call(1, 1, 5, tid=77)]))
    assert (row["kind"], row["stream"], row["device"], row["process"]) == ("api", "thread 77", None, 400)


def test_two_processes_keep_their_own_rows(tmp_path: Path) -> None:
    events = [
        call(1, 1, 11, pid=400),
        call(1, 1, 22, pid=500),
        kernel(5, 1, correlation=11),
        kernel(5, 1, correlation=22),
    ]
    assert [r["process"] for r in rows(imported(tmp_path, events)) if r["kind"] == "compute"] == [400, 500]


def test_absolute_clocks_with_decimals_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    text = json.dumps({"traceEvents": [kernel(0.5, 2.125), h2d(7.25, 1)]})
    path.write_text(
        text.replace('"ts": 0.5', '"ts": 1712345678901234.567').replace('"ts": 7.25', '"ts": 1712345678901240.001')
    )
    found = rows(read(path, ImportOptions()))
    assert [(r["t_start"], r["t_end"] - r["t_start"]) for r in found] == [
        (1712345678901234567, 2125),
        (1712345678901240001, 1000),
    ]


def test_rows_that_cannot_be_are_counted_by_reason(tmp_path: Path) -> None:
    events = [
        *(kernel(i, 1) for i in range(50)),
        kernel(1, -5),
        x("kernel", "no time", None, 1),
        kernel(1, 1e12),
        h2d(-1e14, 1),
        x("gpu_memcpy", "Memcpy HtoH (Pinned -> Pageable)", 1, 1),
        x("cpu_op", "aten::mm", 1, 1),
        {"ph": "B", "cat": "kernel", "name": "half", "ts": 1},
    ]
    result = imported(tmp_path, events)
    assert result.tables["events"].num_rows == 50
    assert result.dropped == {
        "kernel: no times": 1,
        "kernel: end before start": 1,
        "kernel: longer than a day": 1,
        "row: more than 30 days from the others": 1,
        "copy: from host to host": 1,
        "events of a kept category without a duration": 1,
    }
    assert any("not read: 1 cpu_op" in text for text in result.cannot_say)


def test_profiler_steps_become_passes_and_the_last_one_is_kept(tmp_path: Path) -> None:
    events = []
    for step in range(3):
        t = step * 100
        events += [
            annotation(f"ProfilerStep#{step + 5}", t, 50),
            call(t + 10, 1, step + 1, tid=77),
            kernel(t + 60, 30, correlation=step + 1),
        ]
    result = imported(tmp_path, events)
    assert [r["pass_id"] for r in rows(result) if r["kind"] == "compute"] == [0, 1, 2]
    passes = rows(result, "passes")
    assert [(p["arm"], p["repetition"], p["t_start"], p["t_end"]) for p in passes] == [
        ("trace", 0, 60_000, 160_000),  # from its first device work to that of the next step
        ("trace", 1, 160_000, 260_000),
        ("trace", 2, 260_000, 290_000),
    ]
    assert passes[0]["n_ubatch"] is None


def test_steps_that_run_ahead_of_the_device_are_judged_by_when_the_device_works(tmp_path: Path) -> None:
    """A loop that copies the next step's batch while this one's kernel runs: 20 ms a step, three copies of four hidden.

    The kernel that a step issues runs 20 ms later, beside the copy of the next step.
    """
    events = []
    for step in range(4):
        t, copy, launch = step * 20_000, 2 * step + 1, 2 * step + 2
        events += [
            annotation(f"ProfilerStep#{step}", t, 20_000),
            call(t + 100, 5, copy),
            h2d(t + 200, 10_000, 100_000_000, correlation=copy),
            call(t + 150, 5, launch),
            kernel(t + 20_000, 20_000, correlation=launch),
        ]
    import_files([write(tmp_path / "t.json", events)], tmp_path / "c")
    frame = OpenedCapture.open(tmp_path / "c").figures()
    ms = 1e6
    assert frame["wall_ns"].tolist() == [20 * ms, 20 * ms, 20 * ms, 39.8 * ms]  # the last one ends with its kernel
    assert frame["idle_ns"].tolist() == [9.8 * ms, 0, 0, 0]
    assert frame["busy_copy_ns"].tolist() == [10 * ms] * 4
    assert frame["hidden_copy_ns"].tolist() == [0, 10 * ms, 10 * ms, 10 * ms]
    assert frame["busy_compute_ns"].tolist() == [0.2 * ms, 20 * ms, 20 * ms, 39.8 * ms]
    assert frame["overlap_efficiency"].tolist() == [0, 1, 1, 1]
    report = build_report(OpenedCapture.open(tmp_path / "c"))
    assert report.devices[0].copies["h2d"].hidden_ratio == 0.75
    told = report.to_json()["cells"][0]["arms"]["trace"]
    assert (told["hidden_ratio"]["median"], told["hidden_ratio_of_all_passes"]) == (1, 0.75)
    assert "100 % of it hidden behind compute (75.0 % over all 4 passes)" in report.summary


def test_a_step_that_issues_no_work_has_no_figures(tmp_path: Path) -> None:
    events = [
        annotation("ProfilerStep#1", 0, 10_000),
        call(100, 5, 1),
        kernel(200, 9000, correlation=1),
        annotation("ProfilerStep#2", 10_100, 50),
    ]
    import_files([write(tmp_path / "t.json", events)], tmp_path / "c")
    frame = OpenedCapture.open(tmp_path / "c").figures()
    assert frame["wall_ns"].tolist()[0] == 9_000_000
    assert frame.loc[1, list(FIGURES)].isna().all()


@pytest.mark.parametrize("skew_us", [0, 2_000])
def test_ranks_that_were_merged_have_steps_of_their_own(skew_us: int, tmp_path: Path) -> None:
    """Two ranks, 10 ms a step: each copies 40 MB in 4 ms and then computes for 5.9 ms, hiding nothing."""
    events = []
    for rank in range(2):
        host, device = {"pid": f"[TP0{rank}] 4000"}, {"pid": f"[TP0{rank}] 0"}
        for step in range(8):
            t, copy, launch = step * 10_000 + rank * skew_us, 2 * step + 1, 2 * step + 2
            events += [
                annotation(f"ProfilerStep#{step}", t, 9_000) | host,
                call(t + 10, 5, copy, tid=20) | host,
                call(t + 20, 5, launch) | host,
                h2d(t + 100, 4_000, 40_000_000, correlation=copy) | device,
                kernel(t + 4_100, 5_900, correlation=launch) | device,
            ]
    import_files([write(tmp_path / "t.json", events)], tmp_path / "c")
    capture = OpenedCapture.open(tmp_path / "c")
    frame = capture.figures()
    ms = 1e6
    assert sorted(frame["wall_ns"]) == [9.9 * ms] * 2 + [10 * ms] * 14  # each rank's last step ends with its kernel
    told = {"bytes_h2d": 40e6, "busy_copy_ns": 4 * ms, "busy_compute_ns": 5.9 * ms, "hidden_copy_ns": 0}
    for name, value in told.items():
        assert frame[name].tolist() == [value] * 16
    work = [row for row in rows(read(tmp_path / "t.json", ImportOptions())) if row["kind"] != "api"]
    process_of_pass = {(row["pass_id"], row["process"]) for row in work}
    assert len(process_of_pass) == len({number for number, _ in process_of_pass}) == 16


def test_work_of_a_process_without_steps_is_in_none(tmp_path: Path) -> None:
    events = [
        annotation("ProfilerStep#1", 0, 100),
        call(10, 1, 1),
        kernel(20, 50, correlation=1),
        call(10, 1, 2, pid=401),
        kernel(30, 10, correlation=2, stream=8),
        kernel(60, 5, correlation=99, stream=9),  # of no known call: of the only process with steps
    ]
    found = {row["stream"]: row["pass_id"] for row in rows(imported(tmp_path, events)) if row["kind"] == "compute"}
    assert found == {"7": 0, "8": None, "9": 0}


def test_hprof_ranges_restore_arm_pass_ubatch_layer_and_tensor(tmp_path: Path) -> None:
    name = PassName(pass_id=3, arm="hot 64", n_ubatch=8, n_depth=0, n_prompt=8, n_gen=1, repetition=1, warmup=False)
    events = [
        annotation(format_pass(name), 0, 100),
        annotation(format_ubatch(UbatchName(2, "prefill", 8)), 5, 80),
        annotation(format_step(StepName(4, "whole", "blk.4.ffn_up.weight")), 10, 10),
        call(11, 1, 21),
        h2d(200, 50, correlation=21),
        call(30, 1, 22),
        kernel(300, 1, correlation=22),
        call(30, 1, 23, tid=10),
        kernel(310, 1, correlation=23),
    ]
    result = imported(tmp_path, events)
    copy = next(r for r in rows(result) if r["kind"] == "h2d")
    assert copy | {
        "pass_id": 3, "phase": "prefill", "ubatch": 2, "n_tokens": 8, "layer": 4, "tensor": "blk.4.ffn_up.weight",
    } == copy  # fmt: skip
    inside, other_thread = (r for r in rows(result) if r["kind"] == "compute")
    assert (inside["ubatch"], inside["layer"]) == (2, None)
    assert other_thread["pass_id"] is None
    (row,) = rows(result, "passes")
    assert (row["arm"], row["n_ubatch"], row["pass_id"], row["t_end"]) == ("hot 64", 8, 3, 301_000)
    (ubatch,) = rows(result, "ubatches")
    assert (ubatch["pass_id"], ubatch["ubatch"], ubatch["n_tokens"], ubatch["n_past"]) == (3, 2, 8, 0)
    assert (row["ttft_ns"], row["decode_ns"]) == (301_000 - 5_000, None)


@pytest.mark.parametrize("pids", [(4000, 5000), ("[TP00] 4000", "[TP01] 4000")])
def test_each_process_with_ranges_of_hprof_is_a_boot(pids: tuple[Any, Any], tmp_path: Path) -> None:
    """Merged traces of two runs, which both count their passes and repetitions from 0."""
    events = []
    for number, pid in enumerate(pids):
        for place, arm in enumerate(("off", "on")):
            name = PassName(place, arm, n_ubatch=8, n_depth=0, n_prompt=8, n_gen=0, repetition=0, warmup=False)
            t, launch = 1000 * (2 * number + place), 2 * number + place + 1
            events += [annotation(format_pass(name), t, 100, pid=pid), call(t + 10, 1, launch, pid=pid)]
            events.append(kernel(t + 200, 50, correlation=launch))
    found = rows(imported(tmp_path, events), "passes")
    assert [(row["arm"], row["boot"], row["repetition"]) for row in found] == [
        ("off", 0, 0), ("on", 0, 0), ("off", 1, 0), ("on", 1, 0),
    ]  # fmt: skip


def test_what_the_file_says_of_the_machine_reaches_the_manifest(tmp_path: Path) -> None:
    result = imported(
        tmp_path,
        [kernel(1, 1)],
        deviceProperties=[{"id": 0, "name": "NVIDIA H200", "numSms": 132, "huge": ["x"] * 9}],
        distributedInfo={"rank": 3, "world_size": 8, "pg_config": {}},
    )
    machine = result.manifest_fields["machine"]
    assert machine == {
        "gpu": "NVIDIA H200", "gpus": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}], "rank": 3, "world_size": 8,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("base_ns", "first_us", "created"),
    [
        (1_753_444_800_000_000_000, 5_184_000_000_000.5, "2025-09-23T12:00:00+00:00"),  # 60 days after the base
        (0, 1_661_203_462_584_767, "2022-08-22T21:24:22+00:00"),
        (None, 1_661_203_462_584_767, "2022-08-22T21:24:22+00:00"),
        (None, 5_184_000_000_000.5, ""),  # since the machine started
        (1_753_444_800_000_000_000, 1_661_203_462_584_767, ""),  # twice since 1970: the future
        (2**62, 1, ""),
        ("1753444800", 1_661_203_462_584_767, ""),
    ],
)
def test_it_was_created_when_its_first_event_was(base_ns: Any, first_us: Any, created: str, tmp_path: Path) -> None:
    keys = {} if base_ns is None else {"baseTimeNanoseconds": base_ns}
    result = imported(tmp_path, [kernel(first_us + 3_000_000, 1), kernel(first_us, 1)], **keys)
    assert result.manifest_fields["created_utc"] == created


def test_no_event_no_time(tmp_path: Path) -> None:
    result = imported(tmp_path, [x("cpu_op", "aten::mm", 1, 1)], baseTimeNanoseconds=1_753_444_800_000_000_000)
    assert result.manifest_fields["created_utc"] == ""


def test_a_trace_without_gpu_work_imports_and_says_so(tmp_path: Path) -> None:
    result = imported(tmp_path, [x("cpu_op", "aten::mm", 1, 1)])
    assert result.tables["events"].num_rows == 0
    assert any("no GPU work" in warning for warning in result.warnings)


def test_gzip_is_told_by_content(tmp_path: Path) -> None:
    plain = write(tmp_path / "t.json", [kernel(1, 2)])
    packed = tmp_path / "misnamed.json"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(packed, ImportOptions()).tables["events"].equals(read(plain, ImportOptions()).tables["events"])


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "[1, 2]",
        '[{"name": "Ann"}]',
        '{"traceEvents": [5]}',
        '{"traceEvents": [{"a": 1}]}',
        '{"traceEvents": [{"p',
    ],
)
def test_json_that_is_no_trace_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "people.json"
    path.write_text(text)
    with pytest.raises(HprofError, match=r"people\.json holds JSON, but no trace event .*export_chrome_trace"):
        read(path, ImportOptions())


def test_a_trace_that_recorded_nothing_imports_and_says_so(tmp_path: Path) -> None:
    result = imported(tmp_path, [])
    assert result.tables["events"].num_rows == 0
    assert any("no GPU work" in warning for warning in result.warnings)


def test_objects_among_the_events_that_are_none_are_counted(tmp_path: Path) -> None:
    assert imported(tmp_path, [kernel(1, 2), {"name": "Ann"}]).dropped == {"array entries that are no events": 1}
