"""`hprof.ab`: callables in turn, timed without a recording, then recorded without being timed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import hprof
from executor.errors import HprofError
from profiler.capture import Capture
from profiler.compare import compare_captures
from profiler.report.answer import ANSWER_ROOMS, answer_blocks
from profiler.report.build import build_report


def test_arms_take_turns_in_one_process_and_their_calls_are_pairs(tmp_path: Path) -> None:
    calls: list[str] = []

    def call(name: str, seconds: float) -> None:
        calls.append(name)
        time.sleep(seconds)

    with hprof.ab(tmp_path / "out", repetitions=6, record=False) as ab:
        ab.arm("off", partial(call, "off", 0.2))  # so much that a loaded machine does not turn it
        ab.arm("on", partial(call, "on", 0.01), before=partial(calls.append, "before"))
        assert calls == []
    capture = Capture.open(str(ab.capture))
    passes = capture.passes
    measured = passes[~passes["warmup"]]
    assert measured["arm"].tolist() == ["off", "on", "on", "off"] * 3
    assert measured["repetition"].tolist() == [n for n in range(6) for _ in range(2)]
    assert passes["warmup"].sum() in (4, 5, 6)  # two an arm where they agree, else three
    assert calls.count("on") == calls.count("before") == (passes["arm"] == "on").sum()
    assert (passes["t_start"].iloc[1:].to_numpy() >= passes["t_end"].iloc[:-1].to_numpy()).all()
    report = build_report(capture).to_json()
    assert report["source"] == "python"
    found = report["cells"][0]["against_baseline"]["on"]["wall_ns"]
    assert (found["pairs"], found["verdict"]) == (6, "faster")
    assert report["cells"][0]["arms"]["on"]["bytes_h2d"] is None
    assert ab.recording is None


def test_each_arm_is_recorded_once_beside_its_times(tmp_path: Path) -> None:
    weights, n_calls = torch.ones(64, 64), list[torch.Tensor]()
    with hprof.ab(tmp_path / "out", repetitions=1) as ab:
        ab.arm("one", lambda: weights @ weights)
        ab.arm("three", lambda: n_calls.extend(weights @ weights for _ in range(3)))
    assert ab.recording == f"{tmp_path / 'out'}-recorded"
    recording = Capture.open(ab.recording)
    events = recording.table("events").to_pandas()
    if not torch.cuda.is_available():
        products = events[events["name"] == "aten::matmul"].groupby("pass_id").size()
        assert products.tolist() == [1, 3]
    assert recording.passes["arm"].tolist() == ["one", "three"]
    capture = Capture.open(str(ab.capture))
    assert len(n_calls) == 3 * ((capture.passes["arm"] == "three").sum() + 1)
    told = capture.manifest.extra["recorded"]["arms"]
    assert set(told) == {"one", "three"}
    lines = build_report(capture).recorded
    assert lines[0].startswith("Each arm ran once more, recorded by torch.profiler and not timed.")
    if not torch.cuda.is_available():
        assert told["one"]["bytes_h2d"] is None
        assert lines[1].startswith("  one: host compute ")


def test_the_recording_is_told_and_never_judged(tmp_path: Path) -> None:
    with hprof.ab(tmp_path / "out", repetitions=1) as ab:
        ab.arm("off", lambda: torch.ones(256, 256) @ torch.ones(256, 256))
        ab.arm("on", lambda: torch.ones(4, 4) @ torch.ones(4, 4))
    report = build_report(Capture.open(str(ab.recording)))
    said = [line for block in answer_blocks(report, ANSWER_ROOMS[0]) for line in getattr(block, "lines", ())]
    assert said[0].startswith("Recorded, not timed")
    assert not [line for line in said if line.startswith("Set") or "fast" in line]
    assert report.cells[0].against_baseline == {"on": {}}
    assert report.measured.to_json()["untimed"]
    assert {arm.median("wall_ns") for arm in report.cells[0].arms.values()} == {None}
    compared = compare_captures(f"{ab.recording}#off", f"{ab.recording}#on")
    assert "wall_ns" not in {change.figure for change in compared.changes}
    assert "A: recorded beside timed runs, so that its own times are not compared." in compared.warnings


def test_what_an_arm_raises_comes_through_and_the_calls_before_it_stay(tmp_path: Path) -> None:
    left = iter(range(9))

    def failing() -> None:
        if next(left) == 4:
            raise RuntimeError("out of luck")

    ab = hprof.ab(tmp_path / "out", record=False)
    ab.arm("a", lambda: None)
    ab.arm("b", failing)
    with pytest.raises(RuntimeError, match="out of luck"), ab:
        pass
    assert ab.capture is None
    assert Capture.open(tmp_path / "out").manifest.state == "interrupted"
    with pytest.raises(HprofError, match="is a name"), hprof.ab(tmp_path / "never", record=False) as ab:
        ab.arm("", failing)
    assert next(left) == 5, "nothing runs where the block itself raises"
    assert not (tmp_path / "never").exists()


def test_what_cannot_be_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(HprofError, match="no arm to run"), hprof.ab(tmp_path / "out"):
        pass
    ab = hprof.ab(tmp_path / "out")
    ab.arm("a", lambda: None)
    with pytest.raises(HprofError, match="there is an arm 'a' already"):
        ab.arm("a", lambda: None)
    with pytest.raises(HprofError, match="an arm is a name and a callable"):
        ab.arm("b", 7)  # type: ignore[arg-type]
    with pytest.raises(HprofError, match="repetitions=0"):
        hprof.ab(tmp_path / "out", repetitions=0)
    (tmp_path / "taken-recorded").mkdir()
    (tmp_path / "taken-recorded" / "mine").write_text("")
    with pytest.raises(HprofError, match="holds other files"):
        hprof.ab(tmp_path / "taken")
    assert not (tmp_path / "taken").exists()


def test_arms_run_once_inside_a_block_or_at_its_end(tmp_path: Path) -> None:
    with hprof.ab(tmp_path / "out", repetitions=1, record=False) as ab:
        ab.arm("off", int)
        ab.arm("on", int)
        assert ab.run() == ab.capture
    with pytest.raises(HprofError, match=r"the arms ran already, for .*out; begin another"):
        ab.run()


async def _later() -> None:
    pass


def _one_by_one() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("step", [_later, _one_by_one])
def test_a_call_that_runs_nothing_is_no_arm(tmp_path: Path, step: Any) -> None:
    ab = hprof.ab(tmp_path / "out", record=False)
    with pytest.raises(HprofError, match="arm a is a coroutine or generator"):
        ab.arm("a", step)
    ab.arm("b", lambda: step())
    ab.arm("c", int)
    with pytest.raises(HprofError, match=r"a call of arm b gave a (coroutine|generator), which has yet to run"):
        ab.run()


def test_what_comes_too_late_or_cannot_be_called(tmp_path: Path) -> None:
    ab = hprof.ab(tmp_path / "out", repetitions=1, record=False)
    with pytest.raises(HprofError, match="before=3 is nothing that can be called"):
        ab.arm("a", int, before=3)  # type: ignore[arg-type]
    ab.arm("a", int)
    ab.arm("b", int)
    ab.run()
    with pytest.raises(HprofError, match="the arms ran already"):
        ab.arm("c", int)


def test_one_arm_alone_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with (
        pytest.raises(HprofError, match=r"a is the only arm, .*; add another with ab\.arm"),
        hprof.ab(tmp_path / "out") as ab,
    ):
        ab.arm("a", int)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("repetitions", ["6", 2.5, 0, None])
def test_repetitions_that_are_no_number_of_calls(tmp_path: Path, repetitions: Any) -> None:
    with pytest.raises(HprofError, match="is not a whole number between 1 and"):
        hprof.ab(tmp_path / "out", repetitions)


def test_an_arms_name_is_a_text(tmp_path: Path) -> None:
    name: Any = 3
    with pytest.raises(HprofError, match="an arm is a name and a callable, not 3"):
        hprof.ab(tmp_path / "out").arm(name, int)


def test_what_wrote_a_capture_opens_it(tmp_path: Path) -> None:
    """As people hold it in their hands after the block; before that, and for what is none, a sentence."""
    with hprof.ab(tmp_path / "out", repetitions=1, record=False) as ab:
        ab.arm("off", int)
        ab.arm("on", int)
        with pytest.raises(HprofError, match=r"^hprof.open: there is no capture yet; give it after the `with` block"):
            hprof.open(ab)
    assert hprof.open(ab).path == ab.capture
    assert hprof.open(hprof.open(ab)).path == ab.capture
    assert hprof.compare(ab, hprof.open(ab)).result.changes
    with pytest.raises(HprofError, match=r"^hprof.compare: NoneType is no capture's address"):
        hprof.compare(ab, None)  # type: ignore[arg-type]
    with pytest.raises(HprofError, match=r"^hprof.open: int is no capture's address; give a folder"):
        hprof.open(5)  # type: ignore[arg-type]
    with hprof.record(tmp_path / "recorded") as recording:
        torch.ones(4, 4) @ torch.ones(4, 4)
    assert hprof.open(recording).path == recording.capture


@pytest.mark.parametrize("record", [True, False])
def test_a_timeline_of_what_recorded_no_device_is_one_sentence(tmp_path: Path, record: bool) -> None:
    with hprof.ab(tmp_path / "out", repetitions=1, record=record) as ab:
        ab.arm("off", int)
        ab.arm("on", int)
    capture = hprof.open(ab.recording or ab)
    with pytest.raises(HprofError, match="recorded no copies or kernels, so there is no timeline to draw"):
        capture.plot("timeline")
