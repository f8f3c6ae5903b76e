"""`hprof run --recorder`: what is kept, that figures stay the same, and where it is refused. Kernels of a pass, put
into the steps that they ran in.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import hprof
from executor.errors import HprofError
from executor.passes import EventRecord, PassResult
from executor.session import Session
from executor.stamps import STAMP_KERNEL
from profiler.capture import Capture
from profiler.cli.asked import AskedOptions
from profiler.cli.run_request import build_request
from profiler.importers.base import ImportOptions
from profiler.importers.kineto import read
from profiler.metrics.timeline import load_timeline
from profiler.pass_kernels import CuptiRecorder, PassKernels, check_cupti, kernel_rows
from profiler.report.build import build_report
from tests.profiler.kernel_traces import N_KERNELS, FakeTracing, trace_of
from tests.profiler.runs import make_capture, small_request


@pytest.fixture
def tracing(monkeypatch: pytest.MonkeyPatch) -> FakeTracing:
    """Passes of the cpu device, with a trace such as CUPTI leaves."""
    return traced(monkeypatch, FakeTracing())


def traced(monkeypatch: pytest.MonkeyPatch, tracing: FakeTracing) -> FakeTracing:
    run_pass = Session.run_pass

    def remembered(session: Session, *arguments: Any, **options: Any) -> Any:
        tracing.result = run_pass(session, *arguments, **options)
        tracing.zero_unix_ns = time.time_ns() - session.devices[0].now_ns()
        return tracing.result

    monkeypatch.setattr(Session, "run_pass", remembered)
    monkeypatch.setattr("profiler.planning.plan.check_cupti", lambda kind: None)
    monkeypatch.setattr("profiler.running.runner.CuptiRecorder", lambda: CuptiRecorder(tracing))
    return tracing


def test_kernels_join_their_pass_and_no_figure_counts_them(tracing: FakeTracing, tmp_path: Path) -> None:
    capture = make_capture(tmp_path / "c", small_request("cpu", recorder="cupti"))
    events, passes = capture.frame("events"), capture.passes.set_index("pass_id")
    kernels = events[events.detail == "kernel"]
    steps = events[(events.kind == "compute") & events.detail.isna()]
    assert kernels.groupby("pass_id").size().to_dict() == (N_KERNELS * steps.groupby("pass_id").size()).to_dict()
    assert set(kernels.pass_id) == set(passes.index)
    assert (kernels.t_start >= kernels.pass_id.map(passes.t_start)).all()
    assert (kernels.t_end <= kernels.pass_id.map(passes.t_end)).all()
    assert kernels.ubatch.notna().mean() > 0.95
    assert capture.manifest.grid["recorder"] == "cupti"
    assert any("costs time in every pass" in warning for warning in capture.manifest.warnings)

    line = load_timeline(capture, [0])
    assert {lane.stream for lane in line.lanes if lane.category == "compute"} == {None, "kernels"}

    with_kernels, rows = build_report(capture), capture.table("events")
    [part] = (tmp_path / "c" / "events").iterdir()
    marks = rows.filter(pc.is_null(rows["detail"]))
    pq.write_table(marks, part)
    manifest = orjson.loads((tmp_path / "c" / "manifest.json").read_bytes())
    manifest["rows"]["events"] = marks.num_rows
    (tmp_path / "c" / "manifest.json").write_bytes(orjson.dumps(manifest))
    assert build_report(Capture.open(tmp_path / "c")) == with_kernels


def test_passes_without_kernels_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    traced(monkeypatch, FakeTracing(is_empty=True))
    capture = make_capture(tmp_path / "c", small_request("cpu", recorder="cupti", repetitions=1, arms=("on",)))
    manifest = capture.manifest
    [said] = [warning for warning in manifest.warnings if warning.startswith("CUPTI gave no kernels")]
    assert f"no kernels for {capture.n_passes} of the passes" in said
    assert manifest.dropped == {}


def test_kernels_on_an_unknown_clock_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    traced(monkeypatch, FakeTracing(baseTimeNanoseconds=0))
    request = small_request("cpu", recorder="cupti", repetitions=1, arms=("on",))
    manifest = make_capture(tmp_path / "c", request).manifest
    [(reason, number)] = manifest.dropped.items()
    assert "clock could not be matched" in reason
    assert number > 0


@pytest.mark.parametrize("kind", ["cpu", "sim", "cuda"])
def test_no_gpu_no_cupti(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert hprof.main(["run", "--recorder", "cupti", "--device", kind, "-o", str(tmp_path / "c")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("hprof: --device cuda needs" if kind == "cuda" else "hprof: --recorder cupti records")
    assert error.count("\n") == 1
    assert not (tmp_path / "c").exists()


def test_a_torch_without_cupti_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.profiler.supported_activities", set)
    with pytest.raises(HprofError, match="was built without it"):
        check_cupti("cuda")


@pytest.mark.parametrize(
    ("arguments", "recorder"),
    [([], "native"), (["--no-record"], "off"), (["--recorder", "off"], "off"), (["--recorder", "cupti"], "cupti")],
)
def test_spellings(arguments: list[str], recorder: str) -> None:
    from profiler.cli.run import command

    assert build_request(AskedOptions.of(command.make_context("run", arguments))).recorder == recorder


def test_contradicting_spellings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hprof.main(["run", "--no-record", "--recorder", "cupti", "-o", str(tmp_path / "c")]) == 2
    assert "--no-record and --recorder cupti exclude each other" in capsys.readouterr().err


ZERO_NS = 1_795_981_652_123_456_789
SKEW_NS = 40_000


def event(kind: Any, start: int, end: int, name: str = "ffn", layer: int | None = 0, **fields: Any) -> EventRecord:
    known: dict[str, Any] = {
        "device": 0,
        "stream": "compute",
        "phase": "prefill",
        "ubatch": 0,
        "layer": layer,
        "n_tokens": 64,
    }
    return EventRecord(kind, name, start, end, **(known | fields))


def result_of(events: list[EventRecord]) -> PassResult:
    none: dict[str, Any] = dict.fromkeys(
        ("ttft_ns", "prefill_ns", "decode_ns", "sampling_ns", "vram_peak", "vram_resident", "vram_slots", "vram_bank")
    )
    return PassResult(0, 2_000_000, tokens=[], bytes_h2d=0, logits_digest=None, events=events, **none)


def dense_pass(device: int = 0) -> PassResult:
    steps = [
        event("compute", 10_000 + 200_000 * i, 190_000 + 200_000 * i, "attn" if i % 2 else "ffn", i, device=device)
        for i in range(8)
    ]
    copies = [
        event("h2d", 200_000 * i, 150_000 + 200_000 * i, "copy whole", i, device=device, stream="copy", bytes=1 << 20)
        for i in range(8)
    ]
    return result_of([*steps, *copies])


def kernels_of(tmp_path: Path, result: PassResult, zero_ns: int = ZERO_NS, **keys: Any) -> PassKernels:
    path = trace_of(tmp_path / "trace.json", result, ZERO_NS + SKEW_NS, **keys)
    return kernel_rows(read(path, ImportOptions()), result, {0: zero_ns})


def test_each_kernel_lies_in_its_step(tmp_path: Path) -> None:
    result = dense_pass()
    kernels = kernels_of(tmp_path, result)
    rows = kernels.rows.to_pylist()
    assert kernels.n_unmatched == 0
    assert len(rows) == 8 * N_KERNELS  # no copy over the bus, and nothing from before the pass
    for row in rows:
        [step] = [e for e in result.events if e.kind == "compute" and e.layer == row["layer"]]
        assert step.t_start - 2_000 <= row["t_start"] < row["t_end"] <= step.t_end + 2_000
        assert (row["phase"], row["ubatch"], row["n_tokens"]) == ("prefill", 0, 64)
        assert (row["kind"], row["detail"], row["stream"], row["device"]) == ("compute", "kernel", "kernels", 0)
        assert row["correlation_id"] is None  # a native copy's number; CUPTI counts otherwise
    assert {row["name"] for row in rows} == {"gemm_ffn", "gemm_attn", "Memcpy DtoD (Device -> Device)"}
    assert [row["bytes"] for row in rows if row["name"].startswith("Memcpy")] == [64] * 8


def test_a_tokens_own_marks_are_no_kernels(tmp_path: Path) -> None:
    """A replayed token marks its steps by kernels that do nothing else: they are hprof's."""
    result = dense_pass()
    path = trace_of(tmp_path / "trace.json", result, ZERO_NS + SKEW_NS)
    trace = read(path, ImportOptions())
    events = trace.tables["events"]
    names = events["name"].cast(pa.string()).to_pylist()
    marked = [STAMP_KERNEL if name == "gemm_attn" else name for name in names]
    trace.tables["events"] = events.set_column(
        events.schema.get_field_index("name"), "name", pa.array(marked).dictionary_encode()
    )
    rows = kernel_rows(trace, result, {0: ZERO_NS}).rows
    assert names.count("gemm_attn") > 0
    assert rows.num_rows == sum(r["name"] != "gemm_attn" for r in kernels_of(tmp_path, result).rows.to_pylist())
    assert STAMP_KERNEL not in rows["name"].cast(pa.string()).to_pylist()


def test_kernels_between_steps_belong_to_none(tmp_path: Path) -> None:
    result = dense_pass()
    whole = kernels_of(tmp_path, result)
    result.events = [e for e in result.events if not (e.kind == "compute" and e.layer == 3)]
    path = tmp_path / "trace.json"  # still of the whole pass
    rows = kernel_rows(read(path, ImportOptions()), result, {0: ZERO_NS}).rows.to_pylist()
    assert len(rows) == whole.rows.num_rows
    assert sum(row["layer"] is None and row["phase"] is None for row in rows) == N_KERNELS


def test_a_clock_that_cannot_be_matched_loses_the_kernels_and_counts_them(tmp_path: Path) -> None:
    kernels = kernels_of(tmp_path, dense_pass(), zero_ns=ZERO_NS + 10**9)
    assert kernels.rows.num_rows == 0
    assert kernels.n_unmatched == 8 * N_KERNELS + 2
    without_base = kernels_of(tmp_path, dense_pass(), baseTimeNanoseconds=None)
    assert (without_base.rows.num_rows, without_base.n_unmatched) == (0, 8 * N_KERNELS + 2)


def test_devices_have_clocks_of_their_own(tmp_path: Path) -> None:
    """Each is matched alone, here 3 ms apart."""
    first, second = dense_pass(0), dense_pass(1)
    events = []
    for result, zero_ns in ((first, ZERO_NS), (second, ZERO_NS + 3_000_000)):
        path = trace_of(tmp_path / "one.json", result, zero_ns)
        events.append(read(path, ImportOptions()).tables["events"])
    trace = read(path, ImportOptions())
    trace.tables["events"] = pa.concat_tables(events)
    both = result_of([*first.events, *second.events])
    rows = kernel_rows(trace, both, {0: ZERO_NS, 1: ZERO_NS + 3_000_000}).rows.to_pandas()
    assert rows.groupby("device", observed=True).size().to_dict() == {0: 8 * N_KERNELS, 1: 8 * N_KERNELS}
    ordered = [group.sort_values("t_start") for _, group in rows.groupby("device")]
    assert abs(ordered[0]["t_start"].to_numpy() - ordered[1]["t_start"].to_numpy()).max() <= 2_000
    assert rows["layer"].notna().all()


def test_a_pass_without_a_trace_has_no_kernels(tmp_path: Path) -> None:
    result = result_of([])
    kernels = kernels_of(tmp_path, result)
    assert kernels.rows.num_rows == 0
    assert kernels.rows.schema.names[0] == "pass_id"
