"""`hprof check`: exit codes, what it prints, and what the report says of the same capture."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

import hprof
from executor.devices.base import Event, StreamName
from executor.devices.recording import RecordingDevice
from tests.profiler import makers

SMALL = ["run", "-m", "tiny-dense", "--device", "sim", "--arms", "on", "-p", "64", "-n", "2", "-ub", "32", "-r", "1"]


def run(path: Path, *options: str) -> str:
    assert hprof.main([*SMALL, *options, "-o", str(path)]) == 0
    return str(path)


def test_a_run_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run(tmp_path / "c", "--record-ordering")
    capsys.readouterr()
    assert hprof.main(["check", path]) == 0
    told = capsys.readouterr().out
    assert told.startswith("hprof check: all in order, all bytes as expected (")
    assert hprof.main(["check", path, "--json"]) == 0
    found = orjson.loads(capsys.readouterr().out)
    assert (found["state"], found["races"], found["wrong_reads"], found["violations"]) == ("clean", 0, 0, [])
    assert f"({found['operations']:,} operations, {found['pairs']:,} pairs" in told
    assert hprof.main(["report", path, "--format", "md"]) == 0
    assert told.strip() in capsys.readouterr().out


def test_a_missing_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    wait = RecordingDevice.wait

    def without_compute(device: RecordingDevice, stream: StreamName, event: Event) -> None:
        if stream != "compute":
            wait(device, stream, event)

    monkeypatch.setattr(RecordingDevice, "wait", without_compute)
    path = run(tmp_path / "c", "--record-ordering")
    assert "races and 0 reads of wrong bytes" in capsys.readouterr().out
    assert hprof.main(["check", path]) == 1
    told = capsys.readouterr().out
    assert "races and 0 reads of wrong bytes in passes of on (" in told
    assert "read before its write in pass 0 of arm on: copy " in told
    assert "'copy whole' on stream copy of device 0 (layer 0, ubatch 0, issued at " in told
    assert "and let stream compute wait for it before launch " in told
    assert hprof.main(["check", path, "--json"]) == 1
    found = orjson.loads(capsys.readouterr().out)
    assert found["state"] == "faults"
    assert found["races"] >= len(found["violations"]) > 0


def test_a_capture_without_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run(tmp_path / "c")
    capsys.readouterr()
    assert hprof.main(["check", path]) == 2
    assert "nothing can be checked; run again with `hprof run --record-ordering`.\n" in capsys.readouterr().err
    imported = str(makers.imported_without_passes(tmp_path / "imported").path)
    assert hprof.main(["check", imported]) == 2
    assert "or put `hprof.check()` around code of your own (on CUDA)" in capsys.readouterr().err


def test_a_fault_is_planted_marked_and_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run(tmp_path / "c", "--record-ordering", "--inject", "swallow-error")
    told = capsys.readouterr().out.replace("\n", " ")
    assert "Of the injected fault swallow-error the run itself noticed" in told
    assert "Trust no figure of this run." in told
    assert hprof.open(path).manifest.extra["injected_fault"] == "swallow-error"
    assert hprof.main(["check", path]) == 1
    assert "wrong bytes in pass 0 of arm on: launch " in capsys.readouterr().out
    assert hprof.main(["report", path, "--format", "md"]) == 0
    assert "--inject swallow-error: One copy fails, and nobody looks at the error." in capsys.readouterr().out


def test_nothing_is_to_be_set_by_figures_that_nobody_may_trust(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--device", "sim", "--arms", "off,on", "-p", "128", "-ub", "32,64", "--record-ordering"]
    for options, is_told in (([], True), (["--inject", "drop-wait"], False)):
        path = str(tmp_path / str(is_told))
        assert hprof.main(["run", "-m", "tiny-dense", *sizes, *options, "-o", path]) == 0
        assert ("\nSet" in capsys.readouterr().out) is is_told


def test_a_fault_without_records_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hprof.main([*SMALL, "--inject", "drop-wait", "-o", str(tmp_path / "c")]) == 2
    assert "--inject drop-wait is for `hprof check`" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(("fault", "rule"), [("late-issue", "late-prefetch"), ("pageable-source", "pageable-copies")])
def test_a_fault_that_costs_time_alone_is_a_finding(
    fault: str, rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Order and content are as they should be, and the report says what is slow."""
    rules = {}
    for name, options in {"clean": [], fault: ["--inject", fault]}.items():
        path = run(tmp_path / name, "--record-ordering", *options)
        assert hprof.main(["check", path]) == 0
        capsys.readouterr()
        assert hprof.main(["report", path, "--json"]) == 0
        rules[name] = {finding["rule"] for finding in orjson.loads(capsys.readouterr().out)["findings"]}
    assert rule in rules[fault]
    assert rule not in rules["clean"]


def test_a_report_says_what_the_run_itself_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = ["-m", "tiny-dense", "--layers", "3", "-p", "32", "-n", "1", "-ub", "32", "-r", "1"]
    path = str(tmp_path / "c")
    planted = ["--all-logits", "--record-ordering", "--inject", "wrong-slot", "-o", path]
    assert hprof.main(["run", "--device", "cpu", "--arms", "off,on", *size, *planted]) == 0
    capsys.readouterr()
    assert hprof.main(["report", path, "--json"]) == 0
    told = orjson.loads(capsys.readouterr().out)["injected"]
    assert (told["fault"], told["bit_identical"], told["intervals_in_order"]) == ("wrong-slot", False, True)
    assert told["bytes_h2d"]["off"] == told["bytes_h2d"]["on"] > 0
    assert hprof.main(["report", path, "--format", "md"]) == 0
    line = "Of the injected fault wrong-slot the run itself noticed that something is wrong: bytes moved"
    assert line in capsys.readouterr().out


def test_nothing_is_noticed_where_nothing_can_be_compared(tmp_path: Path) -> None:
    path = run(tmp_path / "c", "--record-ordering", "--inject", "swallow-error")
    noticed = hprof.open(path).report().noticed
    assert noticed is not None
    assert (noticed.same_tokens, noticed.bit_identical) == (None, None)
    assert "no two arms whose tokens or logits could be compared" in noticed.line()
    assert hprof.open(run(tmp_path / "clean")).report().noticed is None
