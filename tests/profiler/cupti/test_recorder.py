"""`hprof run --recorder`: what is kept, that figures stay the same, and where it is refused."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import hprof
from executor.errors import HprofError
from executor.session import Session
from profiler.capture import Capture
from profiler.cli.run_request import build_request
from profiler.cupti.recorder import CuptiRecorder, check_cupti
from profiler.metrics.timeline import load_timeline
from profiler.report.build import build_report
from tests.profiler.cupti.traces import N_KERNELS, FakeTracing
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
    pq.write_table(rows.filter(pc.is_null(rows["detail"])), part)
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

    values = command.make_context("run", arguments).params
    assert build_request(values).recorder == recorder


def test_contradicting_spellings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hprof.main(["run", "--no-record", "--recorder", "cupti", "-o", str(tmp_path / "c")]) == 2
    assert "--no-record and --recorder cupti exclude each other" in capsys.readouterr().err
