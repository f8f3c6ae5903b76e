"""`hprof run --recorder`: what is kept, that figures stay the same, and where it is refused. Kernels of a pass, put
into the steps that they ran in. Two clocks are matched from what was marked on one and seen on the other,
whatever the work looks like.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import hprof
from executor.arrays import Int64
from executor.errors import HprofError
from executor.passes import EventRecord, PassResult
from executor.session import Session
from profiler.capture import Capture
from profiler.cli.asked import AskedOptions
from profiler.cli.run_request import build_request
from profiler.cupti import (
    WINDOW_NS,
    ClockMatch,
    CuptiRecorder,
    PassKernels,
    WorkIntervals,
    check_cupti,
    kernel_rows,
    match_clocks,
)
from profiler.importers.base import ImportOptions
from profiler.importers.kineto import read
from profiler.metrics.timeline import load_timeline
from profiler.report.build import build_report
from tests.profiler.cupti_traces import N_KERNELS, FakeTracing, trace_of
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


TRUE_NS = -5_124_626_046_000_123
NO_BYTES = np.empty(0, np.int64)


def spans(start: Int64, length: Int64, n_bytes: Int64 | None = None) -> WorkIntervals:
    return WorkIntervals(start, start + length, np.zeros(len(start), np.int64) if n_bytes is None else n_bytes)


def marked_steps(rng: np.random.Generator, n: int, mean_ns: float) -> WorkIntervals:
    """Steps one after the other on one stream, with a small gap between."""
    length = (mean_ns * rng.uniform(0.5, 1.5, n)).astype(np.int64)
    gap = rng.integers(1_000, 4_000, n)
    start = np.cumsum(length + gap) - length
    return spans(start, length)


def seen_inside(marked: WorkIntervals, rng: np.random.Generator, each: int) -> WorkIntervals:
    """`each` pieces of work inside each mark, 1 to 2 us from its edges, on the other clock, with 200 ns of jitter.

    A single piece fills the mark, as a copy does; several leave a tenth between them.
    """
    margin = np.minimum(rng.integers(1_000, 2_000, len(marked)), (marked.end - marked.start) // 4)
    step = (marked.end - marked.start - 2 * margin) // each
    start = (marked.start + margin)[:, None] + step[:, None] * np.arange(each)
    jitter = rng.integers(-200, 200, start.shape)
    return spans(
        (start + jitter).ravel() - TRUE_NS,
        np.repeat(step if each == 1 else step * 9 // 10, each),
        np.repeat(marked.n_bytes, each),
    )


def error_ns(match: ClockMatch | None) -> int:
    assert match is not None
    return abs(match.offset_ns - TRUE_NS)


@pytest.mark.parametrize("guess_error_ns", [-4_000_000, -30_000, 0, 250_000, 4_000_000])
def test_alike_copies_at_equal_distances(guess_error_ns: int) -> None:
    """A neighbour fits as well as the right one, but then the first or last copy fits nowhere."""
    copies = spans(np.arange(40) * 400_000, np.full(40, 300_000), np.full(40, 16 << 20))
    seen = seen_inside(copies, np.random.default_rng(1), 1)
    match = match_clocks([(copies, seen)], TRUE_NS + guess_error_ns)
    assert error_ns(match) < 3_000
    assert match is not None
    assert match.share == 1.0


@pytest.mark.parametrize(("n_steps", "mean_ns", "each"), [(30, 90_000, 25), (2_000, 60_000, 12), (400, 12_000, 3)])
def test_kernels_alone(n_steps: int, mean_ns: float, each: int) -> None:
    """A pass that streams nothing has no copies to go by."""
    rng = np.random.default_rng(n_steps)
    steps = marked_steps(rng, n_steps, mean_ns)
    match = match_clocks([(steps, seen_inside(steps, rng, each))], TRUE_NS + 700_000)
    assert error_ns(match) < 3_000
    assert match is not None
    assert match.share > 0.95


def test_the_same_decode_step_over_and_over() -> None:
    rng = np.random.default_rng(3)
    once = marked_steps(rng, 9, 40_000)
    starts = (np.arange(60)[:, None] * 500_000 + once.start).ravel()
    steps = spans(starts, np.tile(once.end - once.start, 60))
    match = match_clocks([(steps, seen_inside(steps, rng, 8))], TRUE_NS - 900_000)
    assert error_ns(match) < 3_000


def test_a_copy_in_pieces_and_work_that_was_never_marked() -> None:
    """Selective copies move runs of experts, each seen alone; other streams' work lies anywhere."""
    rng = np.random.default_rng(4)
    copies = spans(np.cumsum(rng.integers(300_000, 500_000, 60)), rng.integers(50_000, 250_000, 60))
    copies = WorkIntervals(copies.start, copies.end, (copies.end - copies.start) * 50)
    pieces = seen_inside(copies, rng, 6)
    pieces = WorkIntervals(pieces.start, pieces.end, pieces.n_bytes // 6)
    noise = spans(rng.integers(0, int(copies.end.max()), 80) - TRUE_NS, np.full(80, 3_000), np.full(80, 512))
    both = WorkIntervals(
        *(np.concatenate([getattr(pieces, n), getattr(noise, n)]) for n in ("start", "end", "n_bytes"))
    )
    match = match_clocks([(copies, both)], TRUE_NS + 100_000)
    assert error_ns(match) < 3_000


def test_a_copy_of_more_bytes_than_were_marked_is_another() -> None:
    copies = spans(np.array([0]), np.array([100_000]), np.array([1_000]))
    seen = spans(np.array([1_000 - TRUE_NS]), np.array([98_000]), np.array([2_000]))
    assert match_clocks([(copies, seen)], TRUE_NS) is None


def test_what_lies_outside_the_window_is_no_match() -> None:
    copies = spans(np.array([0, 10**9]), np.full(2, 100_000))
    seen = spans(copies.start - TRUE_NS, np.full(2, 98_000))
    assert match_clocks([(copies, seen)], TRUE_NS + 2 * WINDOW_NS) is None
    assert match_clocks([(spans(NO_BYTES, NO_BYTES), seen)], TRUE_NS) is None
    assert match_clocks([(copies, spans(NO_BYTES, NO_BYTES))], TRUE_NS) is None
    assert match_clocks([], 0) is None


def test_the_share_tells_a_chance_match() -> None:
    rng = np.random.default_rng(5)
    steps = marked_steps(rng, 200, 30_000)
    unrelated = spans(rng.integers(0, int(steps.end.max()), 900) - TRUE_NS, rng.integers(1_000, 60_000, 900))
    match = match_clocks([(steps, unrelated)], TRUE_NS)
    assert match is not None
    assert match.share < 0.5
