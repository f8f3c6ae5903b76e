"""`hprof run --engine ... --record`: each arm once more under the library, its copies and overlap beside the times."""

from __future__ import annotations

import shlex
import stat
import sys
from pathlib import Path

import pytest

from hprof import main
from profiler.capture import Capture
from profiler.engines import repetition_starts
from profiler.engines.recorded import recorded_figures
from profiler.report.build import build_report
from tests.support import ROOT

PROGRAM = Path(__file__).with_name("program.py")
INLINE = ("kernel('gemm', 10_000, 20_000)", "copy(1, 2, 3, 1 << 20, 20_000, 24_000)")
AHEAD = ("kernel('gemm', 10_000, 20_000)", "copy(1, 2, 3, 1 << 20, 12_000, 16_000)")


@pytest.fixture
def standin(standins: dict[int, Path], cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A libcupti that the library finds."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("HPROF_LIBCUPTI", str(standins[max(standins)]))
    return standins[max(standins)]


def program(standin: Path, *script: str) -> str:
    return shlex.join([sys.executable, str(PROGRAM), str(standin), *script])


def whole_report(capture: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["report", str(capture), "--all"]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_commands_are_recorded_once_more_and_their_overlap_stands_beside_wall_time(
    standin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arms = ["--arm", f"off={program(standin, *INLINE)}", "--arm", f"on={program(standin, *AHEAD)}"]
    assert main(["run", "--engine", "command", *arms, "--record", "-o", str(out)]) == 0
    printed = whole_report(out, capsys)
    assert "Each arm ran in one more process, recorded as `hprof record` does, with loading, and not timed." in printed
    assert "off: copied 1 MiB to the device, busy copy 4.00 us, 0 % of it hidden behind compute" in printed
    assert "on: copied 1 MiB to the device, busy copy 4.00 us, 100 % of it hidden behind compute" in printed
    timed, recorded = Capture.open(out), Capture.open(f"{out}-recorded")
    assert timed.passes["arm"].tolist() == ["off", "on"], "what was recorded was not timed"
    assert recorded.manifest.source == "cupti"
    assert recorded_figures(recorded.path)["on"]["hidden_copy_ns"] == 4000
    report = build_report(timed).to_json()
    assert report["cells"][0]["arms"]["on"]["bytes_h2d"] is None, "the timed runs were not recorded"


def test_llama_bench_has_its_copies_beside_its_speed(
    standin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stand-in of llama-bench, which then does what the stand-in of a CUDA program does."""
    bench = ROOT / "tests" / "profiler" / "engines" / "fake_llama_bench.py"
    binary = tmp_path / "llama-bench"
    lines = [shlex.join([sys.executable, str(bench)]) + ' "$@" && ' + program(standin, *AHEAD)]
    binary.write_text("\n".join(["#!/bin/sh", *lines]))
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    out = tmp_path / "out"
    sizes = ["-m", "fake.gguf", "-p", "64", "-n", "0", "-r", "1"]
    assert main(["run", "--engine", "llama-bench", "--bin", str(binary), *sizes, "--record", "-o", str(out)]) == 0
    printed = whole_report(out, capsys)
    assert "on: copied 1 MiB to the device" in printed
    assert "prefill t/s" in printed
    assert set(Capture.open(f"{out}-recorded").passes["arm"]) == {"off", "on"}


def test_arms_that_never_start_cuda_leave_no_recording_and_are_named(
    standin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert standin.exists()
    out = tmp_path / "out"
    assert main(["run", "--engine", "command", "--arm", "a=true", "--arm", "b=true", "--record", "-o", str(out)]) == 0
    assert "The recording of a and b is empty: no process of it started CUDA" in whole_report(out, capsys)
    assert not (tmp_path / "out-recorded").exists()


def test_what_cannot_be_recorded_is_told_before_anything_runs(
    standin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert standin.exists()
    mark = tmp_path / "ran"
    run = ["run", "--engine", "command", "--arm", f"a=touch {mark}", "--record", "-o", str(tmp_path / "out")]
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/other/profiler.so")
    assert main(run) == 2
    assert "another profiler is set up already" in capsys.readouterr().err
    assert not mark.exists()
    assert not (tmp_path / "out").exists()


BENCH = """
import json, sys
flags = dict(zip(sys.argv[4::2], sys.argv[5::2]))
def repeat(test, number):
    begin = time.time_ns()
    print(f"llama-bench: benchmark {test}/1: prompt run {number}/2", file=sys.stderr, flush=True)
    time.sleep(0.3)
    at = time.time_ns() - _T0
    kernel('gemm', at, at + 5_000_000)
    copy(1, 2, 3, 1000 * number, at, at + 2_000_000)
    time.sleep(0.3)
    return time.time_ns() - begin
copy(1, 1, 3, 1 << 30, 0, 1)  # loading
time.sleep(0.3)
if "--help" in sys.argv:
    print("--progress", flush=True)
elif "--version" not in sys.argv:
    row = {"model_filename": flags["-m"], "n_prompt": 64, "n_gen": 0, "n_depth": 0, "n_ubatch": 32}
    print(json.dumps(row | {"samples_ns": [repeat(1, 1), repeat(1, 2)], "avg_ns": 1}), flush=True)
"""


def test_repetitions_of_llama_bench_are_passes_of_the_recording(
    standin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        repetition_starts, "_LATE_NS", 250_000_000
    )  # however loaded the machine is; all gaps are longer
    binary = tmp_path / "llama-bench"
    start = f"import runpy, sys; sys.argv[1:1] = [{str(standin)!r}, {BENCH!r}, 'sys.exit()']; "
    binary.write_text(f"#!{sys.executable}\n{start}runpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n")
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    out = tmp_path / "out"
    words = ["--bin", str(binary), "--arm", "on=-x y", "-m", "fake.gguf", "-p", "64", "-n", "0", "-ub", "32", "-r", "2"]
    assert main(["run", "--engine", "llama-bench", *words, "--record", "-o", str(out)]) == 0
    recorded = Capture.open(f"{out}-recorded")
    passes = recorded.table("passes").to_pylist()
    assert [(row["n_prompt"], row["n_ubatch"], row["repetition"], row["bytes_h2d"]) for row in passes] == [
        (64, 32, 0, 1000),
        (64, 32, 1, 2000),
    ], recorded.manifest.cannot_say
    assert recorded.table("events")["pass_id"].null_count == 2, "what loading copied, and its call"
    assert "on: copied 1.46 KiB to the device, busy copy 2.00 ms, 100 % of it hidden" in whole_report(out, capsys)
