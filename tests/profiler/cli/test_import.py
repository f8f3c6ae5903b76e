"""`hprof import`, called in process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hprof import main
from tests.profiler.importers.nsys.exports import KERNEL, MEMCPY, RUNTIME, Row, call, copy, kernel, write_export

_MS = 10**6


def _export(path: Path) -> Path:
    copies = [copy(2 * i * _MS, (2 * i + 1) * _MS, i + 1, bytes=25 * 10**6) for i in range(10)]
    kernels = [kernel((2 * i + 1) * _MS, (2 * i + 2) * _MS, 100 + i) for i in range(10)]
    return write_export(path, {MEMCPY: copies, KERNEL: kernels})


def test_it_says_where_and_shows_the_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = _export(tmp_path / "run.sqlite"), tmp_path / "out"
    assert main(["import", str(source), "-o", str(out)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Wrote {out}\n")
    assert "Process 111, device 0: 238 MiB went to the device" in " ".join(shown.split())
    assert "copies-on-compute-stream" in shown
    assert "Imported from Nsight Systems." in shown
    assert f"hprof report {out} --all" in " ".join(shown.split())
    assert len(shown.splitlines()) <= 25
    assert main(["import", str(source), "-o", str(out), "--force", "--all"]) == 0
    assert "Process 111, device 0: 10 kernels" in capsys.readouterr().out


def test_json_on_stdout_is_json_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = _export(tmp_path / "run.sqlite")
    assert main(["import", str(source), "-o", str(tmp_path / "out"), "--json"]) == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert said.err.startswith("Wrote ")
    assert report["source"] == "nsys"
    assert report["devices"][0]["copies"]["h2d"]["bytes"] == 250 * 10**6
    assert [finding["rule"] for finding in report["findings"]] == ["copies-on-compute-stream"]


def test_arms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    off, on = _export(tmp_path / "a.sqlite"), _export(tmp_path / "b.sqlite")
    arguments = ["--arm", f"off={off}", "--arm", f"on={on}", "-o", str(tmp_path / "out"), "--json"]
    assert main(["import", *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [arm["name"] for arm in report["arms"]] == ["off", "on"]
    assert report["baseline"] == "off"


def test_the_default_folder_is_called_after_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["import", str(_export(tmp_path / "my.run.sqlite"))]) == 0
    assert (tmp_path / "traces" / "my.run" / "manifest.json").exists()


def test_a_second_import_needs_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["import", str(_export(tmp_path / "run.sqlite")), "-o", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert main(arguments) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    assert main(["import", arguments[arguments.index("-o") + 1]]) == 2
    assert "is a capture already: `hprof report` shows it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "NAME=FILE"),
        (["--arm", "on"], "NAME=FILE"),
        (["x.sqlite", "--range", "on=5"], "NAME=FROM:TO"),
        (["x.sqlite", "--range", "on=5:7"], "'5' is not a time"),
        (["x.sqlite", "y.sqlite", "--range", "on=0:7ms"], "give one trace file, and no --arm"),
        (["nowhere.sqlite"], "nowhere.sqlite does not exist"),
        (["--kind", "perfetto", "x"], "perfetto"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["import", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_the_name_of_a_range_is_no_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = _export(tmp_path / "run.sqlite")
    assert main(["import", str(source), "--arm", "off=off_range", "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "--arm off=off_range: there is no file off_range" in said
    assert "or a stretch of one trace: hprof import FILE --range off=0ms:188ms" in said


def test_stretches_of_a_trace_or_of_its_capture_become_arms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_export(tmp_path / "run.sqlite", {KERNEL: [kernel(0, 300_000), kernel(500_000, 600_000)]})
    ranges = ["--range", "off=0:400us", "--range", "on=0.4ms:1ms"]
    assert main(["import", str(source), *ranges, "-o", str(tmp_path / "cut"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    walls = {arm: told["cells"][0]["arms"][arm]["wall_ns"]["median"] for arm in ("off", "on")}
    assert walls == {"off": 300_000, "on": 100_000}
    assert main(["import", str(source), "-o", str(tmp_path / "whole"), "--json"]) == 0
    capsys.readouterr()
    assert main(["import", str(tmp_path / "whole"), *ranges, "--json"]) == 0
    of_capture = json.loads(capsys.readouterr().out)
    assert of_capture["capture"].endswith("whole-arms")
    assert of_capture["cells"] == told["cells"]


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (
            [],
            "1 kernel, 800 ns busy; no copy from host to device was recorded (kernels that read host memory",
        ),
        (
            [call(1, 2, 7, nameId=4)],
            "1 kernel, 800 ns busy; it copied, and what went which way was not recorded",
        ),
    ],
)
def test_no_copy_is_said_with_what_cannot_be_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], calls: list[Row], said: str
) -> None:
    source = write_export(tmp_path / "run.sqlite", {KERNEL: [kernel(100, 900)], RUNTIME: calls})
    assert main(["import", str(source), "-o", str(tmp_path / "out"), "--all"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert said in shown
    assert "Process 111, device 0: 1 kernel, 800 ns busy, stream 7, no copies recorded." in shown
    assert "copies count bytes" not in shown


def test_texts_of_the_trace_are_never_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "[red]lost[/nonsense] some events, dropped"
    tables = {KERNEL: [kernel(1, 2)], "DIAGNOSTIC_EVENT": [{"severity": 3, "text": said}]}
    source = write_export(tmp_path / "[bold]run.sqlite", tables)
    assert main(["import", str(source), "-o", str(tmp_path / "out")]) == 0
    assert "[red]lost[/nonsense]" in capsys.readouterr().out


def test_arm_by_is_refused_where_rows_have_no_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = _export(tmp_path / "run.sqlite"), tmp_path / "out"
    assert main(["import", str(source), "--arm-by", "load_mode", "-o", str(out)]) == 2
    said = capsys.readouterr().err
    assert "--arm-by works for llama-bench alone" in said
    assert "run.sqlite is of kind nsys" in said
    assert not out.exists()


def test_importing_and_reporting_need_no_torch(tmp_path: Path) -> None:
    """It takes 2 s to load."""
    source, out = _export(tmp_path / "run.sqlite"), tmp_path / "out"
    code = (
        f"import sys, hprof; hprof.main(['import', {str(source)!r}, '-o', {str(out)!r}]); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
