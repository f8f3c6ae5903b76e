"""`hprof.record` and `hprof.range` on a machine without CUDA: the host's operators are told, devices are null."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import hprof
from executor.units import format_ns
from profiler.capture import Capture
from profiler.recording.ranges import _step_of
from profiler.report.answer import ANSWER_ROOMS, answer_blocks
from profiler.report.blocks import Lines
from profiler.report.build import build_report
from profiler.report.report import Report

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu/test_cuda_own_code.py is for CUDA")
WEIGHTS = torch.ones(64, 64)


@hprof.range("ffn 3")
def ffn(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ WEIGHTS)


def test_the_hosts_operators_are_recorded_and_ranges_name_their_layers(tmp_path: Path) -> None:
    with hprof.record(tmp_path / "out", arm="on") as recording:
        x = torch.ones(8, 64)
        for _ in range(4):
            with hprof.range("attn 2"):
                x = x @ WEIGHTS
            x = ffn(x)
    assert recording.capture is not None
    events = Capture.open(recording.capture).table("events").to_pandas()
    assert set(events["kind"]) == {"cpu_compute"}
    assert events["device"].isna().all()
    by_layer = events.groupby("layer")["name"].agg(lambda names: set(names.astype(str)))
    assert "aten::relu" in by_layer[3]
    assert "aten::relu" not in by_layer[2]
    assert (events.query("layer == 3")["name"] == "aten::matmul").sum() == 4
    assert events["stream"].astype(str).str.startswith("thread ").all()


def test_what_devices_did_is_null_and_the_capture_says_why(tmp_path: Path) -> None:
    with hprof.record(tmp_path / "out", arm="on"):
        ffn(torch.ones(8, 64))
    capture = hprof.open(tmp_path / "out")
    report = build_report(capture).to_json()
    assert report["source"] == "kineto"
    [cell] = report["cells"]
    arm = cell["arms"]["on"]
    on_device = ("bytes_h2d", "busy_copy_ns", "busy_compute_ns", "hidden_copy_ns", "exposed_copy_ns", "idle_ns")
    assert {arm[name] for name in on_device} == {None}
    assert arm["host_compute_ns"]["median"] > 0
    assert arm["wall_ns"]["median"] >= arm["host_compute_ns"]["median"]
    assert any("no CUDA device" in text for text in report["cannot_say"])
    assert any("before the recording began is missing" in text for text in report["warnings"])
    assert not any("no GPU work" in text for text in report["warnings"])
    assert any(text.startswith("No annotation names passes or ubatches (") for text in report["cannot_say"])
    told = answer_text(build_report(capture))
    spent = format_ns(arm["host_compute_ns"]["median"])
    assert f"on: the host computed for {spent}; its copies and what devices computed were not recorded." in told
    assert report["summary"].startswith("on took ")
    assert report["summary"].endswith(" in one pass; its copies are not known.")


def answer_text(report: Report) -> str:
    blocks = answer_blocks(report, ANSWER_ROOMS[0])
    return " ".join(line for block in blocks if isinstance(block, Lines) for line in block.lines)


def test_code_that_raises_is_recorded_up_to_there(tmp_path: Path) -> None:
    def breaking() -> None:
        ffn(torch.ones(8, 64))
        raise ValueError("broke\x1b[2J here")

    with pytest.raises(ValueError, match="broke"), hprof.record(tmp_path / "out"):
        breaking()
    capture = Capture.open(tmp_path / "out")
    assert capture.passes["arm"].tolist() == ["recorded"]
    assert "The code ended with ValueError: broke?[2J here" in capture.manifest.warnings


def test_what_cannot_be_recorded_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with hprof.record(tmp_path / "out"):
        ffn(torch.ones(8, 64))
    ran = []
    with pytest.raises(hprof.HprofError, match="already holds a capture"), hprof.record(tmp_path / "out"):
        ran.append("code")
    with pytest.raises(hprof.HprofError, match="cannot write /proc/no/place"), hprof.record("/proc/no/place"):
        ran.append("code")
    with pytest.raises(hprof.HprofError, match="a null character"), hprof.record(tmp_path / "a\0b"):
        ran.append("code")
    outer = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    runs_already = pytest.raises(hprof.HprofError, match="profiler of torch's runs already")
    with outer, runs_already, hprof.record(tmp_path / "other"):
        ran.append("code")
    assert not ran
    assert not (tmp_path / "other").exists()
    with pytest.raises(hprof.HprofError, match="an arm needs a name"):
        hprof.record(tmp_path / "other", arm=" ")
    with hprof.record(tmp_path / "out", "again", force=True):
        ffn(torch.ones(8, 64))
    assert Capture.open(tmp_path / "out").passes["arm"].tolist() == ["again"]


def test_a_range_may_be_used_inside_itself(tmp_path: Path) -> None:
    step = hprof.range("step")

    @step
    def twice(depth: int) -> torch.Tensor:
        return twice(depth - 1) if depth else ffn(torch.ones(8, 64))

    with hprof.record(tmp_path / "out"), step:
        twice(2)
    events = Capture.open(tmp_path / "out").table("events").to_pandas()
    assert (events["layer"] == 3).any()


def test_threads_leave_their_own_ranges(tmp_path: Path) -> None:
    step, both_inside = hprof.range("ffn 3"), threading.Barrier(2, timeout=30)
    failures: list[RuntimeError] = []

    def work() -> None:
        try:
            with step:
                both_inside.wait()
                torch.relu(WEIGHTS)
            both_inside.wait()
        except RuntimeError as error:  # a barrier that broke is one too
            failures.append(error)

    with hprof.record(tmp_path / "out"):
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.relu(WEIGHTS)  # so that there is work of this thread, in no range
    assert not failures


@pytest.mark.parametrize("name", ["", "  ", "x" * 201, 3, None])
def test_a_range_needs_a_name(name: Any) -> None:
    with pytest.raises(hprof.HprofError, match="a name has 1 to 200 characters"):
        hprof.range(name)


def test_a_recording_beside_another_threads_is_refused(tmp_path: Path) -> None:
    """torch itself crashes there, and tells each thread of its own profiler alone."""
    said: list[str] = []

    def record_too() -> None:
        try:
            with hprof.record(tmp_path / "second"):
                said.append("recorded")
        except hprof.HprofError as error:
            said.append(str(error))

    for _ in range(2):  # the first's end lets another begin
        with hprof.record(tmp_path / "first", force=True) as first:
            thread = threading.Thread(target=record_too)
            thread.start()
            thread.join()
            ffn(torch.ones(8, 64))
        assert first.capture is not None
    assert said == ["a profiler of torch's runs already, and there can be one; end it first."] * 2


def test_a_recording_is_for_one_block(tmp_path: Path) -> None:
    recording = hprof.record(tmp_path / "out")
    with recording:
        ffn(torch.ones(8, 64))
    with pytest.raises(hprof.HprofError, match="has begun before"), recording:
        pass
    with pytest.raises(hprof.HprofError, match=r"an arm needs a name, such as arm='on', not 3"):
        hprof.record(tmp_path / "out", arm=3)  # type: ignore[arg-type]


async def _later() -> None:
    pass


def test_ranges_that_would_name_nothing_are_refused() -> None:
    with pytest.raises(hprof.HprofError, match="_later is a coroutine or generator"):
        hprof.range("ffn 3")(_later)


@pytest.mark.parametrize(("name", "layer"), [("ffn 3", 3), ("ffn3", 3), ("step 1234567", None), ("3", None)])
def test_a_number_at_the_end_of_a_name_is_the_layer(name: str, layer: int | None) -> None:
    assert _step_of(name).layer == layer
