"""One trace cut into arms by time: passes, repetitions, ubatches and figures are those of the stretches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from executor.errors import HprofError
from profiler.capture import Capture
from profiler.cutting import cut_capture
from profiler.importers import TraceInput, import_files
from profiler.importers.cut import ArmRange, cut_into_arms
from profiler.metrics import load_tables, pass_figures
from tests.profiler.importers.kineto import traces
from tests.profiler.importers.nsys.exports import KERNEL, MEMCPY, RUNTIME, call, copy, kernel, nvtx, write_export
from tests.profiler.makers import dense_off_on
from tests.support import ROOT

_FIRST = 5_000  # of the trace's rows; ranges count from it


def _import_cut(trace: Path, out: Path, ranges: Sequence[ArmRange]) -> str:
    return import_files([TraceInput(trace, cut=partial(cut_into_arms, ranges=ranges))], out)


def _trace(path: Path) -> Path:
    """off, on, off: each a copy of 40 ns and a kernel of 40, on and after it; a call of the host comes first."""
    begins = (1000, 2000, 3000)
    copies = [copy(_FIRST + at, _FIRST + at + 40) for at in begins]
    kernels = [
        kernel(_FIRST + at + (0 if at == 2000 else 50), _FIRST + at + (40 if at == 2000 else 90)) for at in begins
    ]
    return write_export(path, {RUNTIME: [call(_FIRST, _FIRST + 10)], MEMCPY: copies, KERNEL: kernels})


_RANGES = [ArmRange("off", 900, 1950), ArmRange("on", 1950, 2900), ArmRange("off", 2900, 9000)]


def test_a_stretch_is_a_pass_as_long_as_its_device_worked(tmp_path: Path) -> None:
    capture = Capture.open(_import_cut(_trace(tmp_path / "a.sqlite"), tmp_path / "out", _RANGES))
    passes = [
        (p["pass_id"], p["arm"], p["repetition"], p["t_start"], p["t_end"], p["bytes_h2d"])
        for p in capture.table("passes").sort_by("pass_id").to_pylist()
    ]
    assert passes == [(0, "off", 0, 1000, 1090, 1000), (1, "on", 0, 2000, 2040, 1000), (2, "off", 1, 3000, 3090, 1000)]
    figures = pass_figures(*load_tables(capture))["pass"]
    assert figures["hidden_copy_ns"].tolist() == [0, 40, 0]
    assert capture.table("events").sort_by("t_start")["pass_id"][0].as_py() is None, "outside of the ranges"
    assert [arm.name for arm in capture.manifest.arms] == ["off", "on"]
    assert any("stretches of one trace" in warning for warning in capture.manifest.warnings)


def test_a_capture_is_cut_as_its_trace_would_be(tmp_path: Path) -> None:
    trace = _trace(tmp_path / "a.sqlite")
    of_trace = Capture.open(_import_cut(trace, tmp_path / "cut", _RANGES))
    of_capture = Capture.open(cut_capture(import_files([trace], tmp_path / "whole"), _RANGES))
    assert of_capture.name == "whole-arms"
    for table in ("events", "passes", "ubatches"):
        assert of_capture.table(table).equals(of_trace.table(table))
    kept = ("arms", "machine", "created_utc", "warnings", "cannot_say", "extra")
    for field in kept:
        assert getattr(of_capture.manifest, field) == getattr(of_trace.manifest, field)


def test_ubatches_count_from_0_in_each_arm(tmp_path: Path) -> None:
    rows: dict[str, list[Any]] = {"ranges": [], "calls": [], "kernels": []}
    for number in range(4):
        at = 1000 * number
        rows["ranges"].append(nvtx(at, at + 100, f"ubatch {number}"))
        rows["calls"].append(call(at + 10, at + 20, number + 1))
        rows["kernels"].append(kernel(at + 30, at + 500, number + 1))
    tables = {"NVTX_EVENTS": rows["ranges"], RUNTIME: rows["calls"], KERNEL: rows["kernels"]}
    ranges = [ArmRange("off", 0, 1900), ArmRange("on", 1900, 4000)]
    capture = Capture.open(_import_cut(write_export(tmp_path / "a.sqlite", tables), tmp_path / "out", ranges))
    kernels = [row for row in capture.table("events").sort_by("t_start").to_pylist() if row["kind"] == "compute"]
    assert [(row["pass_id"], row["ubatch"]) for row in kernels] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_steps_of_torch_profiler_stay_passes(tmp_path: Path) -> None:
    events = []
    for step in range(4):
        t = step * 100
        events += [traces.annotation(f"ProfilerStep#{step}", t, 50), traces.call(t + 10, 1, step + 1, tid=77)]
        events += [traces.kernel(t + 60, 30, correlation=step + 1)]
    trace = traces.write(tmp_path / "t.json", events)
    ranges = [ArmRange("on", 250_000, 400_000), ArmRange("off", 150_000, 250_000)]
    capture = Capture.open(_import_cut(trace, tmp_path / "out", ranges))
    passes = capture.table("passes").sort_by("t_start").to_pylist()
    assert [(p["arm"], p["repetition"]) for p in passes] == [("off", 0), ("on", 0), ("on", 1)]
    assert [arm.name for arm in capture.manifest.arms] == ["on", "off"], "the first given is the baseline"
    kernels = [row for row in capture.table("events").sort_by("t_start").to_pylist() if row["kind"] == "compute"]
    assert [row["pass_id"] for row in kernels] == [None, *(p["pass_id"] for p in passes)]


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ([ArmRange("off", 0, 2000), ArmRange("on", 1990, 3000)], "overlap"),
        (
            [ArmRange("off", 0, 500)],
            "no device did anything in the range off .* devices worked from 1.00 us to 3.09 us",
        ),
        ([ArmRange("off", 500, 500)], "a start before the end"),
        ([ArmRange("", 0, 2000)], "give an arm's name"),
    ],
)
def test_what_can_be_no_arm_is_refused_and_leaves_nothing(ranges: list[ArmRange], said: str, tmp_path: Path) -> None:
    with pytest.raises(HprofError, match=said):
        _import_cut(_trace(tmp_path / "a.sqlite"), tmp_path / "out", ranges)
    assert not (tmp_path / "out").exists()


def test_who_names_its_arms_is_not_cut(tmp_path: Path) -> None:
    trace = _trace(tmp_path / "a.sqlite")
    two = import_files([TraceInput(trace, "off"), TraceInput(trace, "on")], tmp_path / "two")
    with pytest.raises(HprofError, match="names its own arms"):
        cut_capture(two, [ArmRange("off", 0, 5000)])
    with pytest.raises(HprofError, match="has arms already"):
        cut_capture(dense_off_on(tmp_path / "own").path, _RANGES)
    cut = _import_cut(trace, tmp_path / "cut", _RANGES[:1])
    with pytest.raises(HprofError, match="was cut into arms already"):
        cut_capture(cut, _RANGES[1:])


def test_a_capture_that_is_cut_stays(tmp_path: Path) -> None:
    whole = import_files([_trace(tmp_path / "a.sqlite")], tmp_path / "whole")
    with pytest.raises(HprofError, match="is what is cut, and stays"):
        cut_capture(whole, _RANGES, tmp_path / "whole", force=True)
    assert not len(Capture.open(whole).passes)


def test_rows_without_events_have_no_stretches(tmp_path: Path) -> None:
    rows = ROOT / "tests" / "data" / "llama-bench" / "smollm2.csv"
    with pytest.raises(HprofError, match="it holds no events"):
        _import_cut(rows, tmp_path / "out", _RANGES)
