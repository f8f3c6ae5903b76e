"""`hprof run` as a user calls it: good calls, and one sentence with exit code 2 for bad ones."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import orjson
import pytest

import hprof
from profiler.capture import Capture
from profiler.cli import run as run_cli
from profiler.cli.run_output import default_output
from tests.gguf_models import model_path

FAST = ["--device", "sim", "--layers", "2", "-p", "64", "-n", "2", "-ub", "32", "-r", "2"]


def run(*arguments: str | Path) -> int:
    return hprof.main(["run", *map(str, arguments)])


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one sentence that a bad call ends with."""
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hprof: ")
    assert captured.err.count("\n") == 1, captured.err
    return captured.err


def test_a_run_writes_a_capture_and_prints_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*FAST, "-o", tmp_path / "c") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Wrote {tmp_path / 'c'}\n")
    assert "SIMULATED" in out.splitlines()[1]
    assert len(out.splitlines()) <= 25
    assert run(*FAST, "-o", tmp_path / "whole", "--all") == 0
    assert "-p 64 -n 2 -ub 32 -d 0" in capsys.readouterr().out
    assert Capture.open(tmp_path / "c").manifest.state == "complete"


def test_json_is_the_reports_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*FAST, "-o", tmp_path / "c", "--json") == 0
    captured = capsys.readouterr()
    report = orjson.loads(captured.out)
    assert report["schema"] == 1
    assert [cell["n_ubatch"] for cell in report["cells"]] == [32]
    assert captured.err == f"Wrote {tmp_path / 'c'}\n"


def test_the_default_folder_is_named_after_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*FAST) == 0
    [capture] = (tmp_path / "traces").iterdir()
    assert capture.name.startswith("tiny-dense-")


def test_default_folders_differ_in_the_same_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _form: "now")
    names = []
    for _ in range(3):
        names.append(default_output("m/1"))
        (tmp_path / names[-1]).mkdir(parents=True)
    assert names == ["traces/m-1-now", "traces/m-1-now-2", "traces/m-1-now-3"]


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging takes longer than these small runs do."""
    monkeypatch.setattr(run_cli, "show_report", lambda *_, **__: None)


@pytest.mark.usefixtures("no_report")
def test_llama_benchs_spellings(tmp_path: Path) -> None:
    arguments = ["-m", "tiny-moe", "--layers", "2", "--device", "sim", "-r", "1", "-lm", "none", "-fa", "1"]
    arguments += ["-p", "64", "-n", "0-2+2", "-ub", "32-64*2", "-d", "8", "-pw", "0,1", "-ncmoe", "1,2"]
    assert run(*arguments, "-o", tmp_path / "c") == 0
    capture = Capture.open(tmp_path / "c")
    assert capture.manifest.grid["n_ubatch"] == [32, 64]
    assert capture.manifest.grid["n_gen"] == [0, 2]
    assert capture.manifest.grid["n_depth"] == [8]
    assert [arm.name for arm in capture.manifest.arms] == ["off", "on", "off@2", "on@2"]
    assert [c["host_layers"] for c in capture.manifest.placement["configurations"]] == [[0], [0, 1]]
    assert capture.manifest.argv == ["hprof", "run", *arguments, "-o", str(tmp_path / "c")]


def test_options_may_be_repeated_or_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPROF_RUN_REPETITIONS", "1")
    arguments = ["--device", "sim", "--layers", "1", "-p", "64", "-n", "0", "-ub", "32", "-ub", "64"]
    assert run(*arguments, "-ot", "ffn_up=CPU;ffn_down=CPU,attn_q=CPU", "-o", tmp_path / "c") == 0
    manifest = Capture.open(tmp_path / "c").manifest
    assert manifest.grid["n_ubatch"] == [32, 64]
    assert manifest.grid["repetitions"] == 1
    assert [c["n_host_tensors"] for c in manifest.placement["configurations"]] == [2, 1]


def idle(tmp_path: Path, *arguments: str) -> list[str]:
    """Which options the capture's warnings say do nothing."""
    assert run(*FAST, "-p", "32", "-r", "1", *arguments, "-o", tmp_path / "c", "--force") == 0
    said = " does nothing in this run: "
    return [text.partition(said)[0] for text in Capture.open(tmp_path / "c").manifest.warnings if said in text]


@pytest.mark.usefixtures("no_report")
def test_options_that_do_nothing_are_said(tmp_path: Path) -> None:
    assert idle(tmp_path) == []
    assert idle(tmp_path, "--routing", "uniform") == ["--routing"]
    assert idle(tmp_path, "--moe-cache-mib", "1", "--cache-policy", "lru") == ["--moe-cache-mib", "--cache-policy"]
    assert idle(tmp_path, "--arms", "off", "--slots", "3", "--gate-min-batch", "9") == ["--slots", "--gate-min-batch"]
    assert idle(tmp_path, "--arms", "full,cpu", "--op-offload-min-batch", "9") == ["--op-offload-min-batch"]
    assert idle(tmp_path, "-lm", "mmap", "--madvise") == ["--load-mode", "--madvise"]
    assert idle(tmp_path, "--threads", "1", "-fa", "0") == ["--threads", "-fa 0"]
    for fault, arms, is_idle in (
        ("drop-wait", "off,cpu", True),
        ("drop-wait", "off,gated", False),
        ("prefetch-bank", "off,on", True),
        ("prefetch-uncomputed", "off,cpu", False),
    ):
        found = idle(tmp_path, "--arms", arms, "--record-ordering", "--inject", fault)
        assert (found == ["--inject"]) == is_idle
    assert idle(tmp_path, "--arms", "gated", "--slots", "3", "--gate-min-batch", "9", "-lm", "none", "-fa", "1") == []


def test_a_variable_that_is_no_option_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPROF_RUN_UB", "64")
    monkeypatch.setenv("HPROF_RUN_N_UBATCH", "64")
    assert run(*FAST[:-4], "-r", "6", "-o", tmp_path / "c") == 0
    manifest = Capture.open(tmp_path / "c").manifest
    assert manifest.warnings == ["The variable HPROF_RUN_UB is no option of `hprof run`, so it does nothing."]
    assert manifest.grid["n_ubatch"] == [64]


def test_an_arm_named_twice(tmp_path: Path) -> None:
    for number, words in enumerate((["--arms", "off,off"], ["-pw", "0,0"])):
        assert run(*FAST, *words, "-o", tmp_path / str(number)) == 0
        assert [arm.name for arm in Capture.open(tmp_path / str(number)).manifest.arms] == ["off", "off@copy2"]


def test_boots_are_fresh_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "profiler").mkdir()
    (tmp_path / "profiler" / "__init__.py").write_text("")  # another project's, in the folder where hprof is called
    monkeypatch.chdir(tmp_path)
    assert run(*FAST, "--boots", "2", "-o", tmp_path / "c", "--json") == 0
    capture = Capture.open(tmp_path / "c")
    passes = capture.passes
    assert capture.manifest.state == "complete"
    assert capture.manifest.grid["boots"] == 2
    assert passes.groupby("boot").size().tolist() == [8, 8]
    assert passes.pass_id.tolist() == list(range(16))
    assert set(capture.frame("events").pass_id) == set(range(16))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-m", "missing.gguf"], "missing.gguf: no such file"),
        (["-m", "tiny-dens"], "did you mean tiny-dense"),
        (["--quant", "Q9_X"], "Q9_X"),
        (["--layers", "99"], "--layers 99: tiny-dense has 8 layers"),
        (["-ub", "0"], "-ub 0: 0 is out of range; give 1 to 2147483647"),
        (["-p", "-5"], "-p -5: -5 is out of range"),
        (["-n", "x"], "-n 'x' is not a number"),
        (["-d", "4-1"], "-d 4-1: the range ends before it begins"),
        (["-p", "0", "-n", "0"], "-p 0 with -n 0 has nothing to run"),
        (["-p", "0,64", "-n", "0,4"], "-p 0 with -n 0 has nothing to run"),
        (["-p", "1-200", "-ub", "1-200"], "the grid has 40,000 cells and hprof runs up to 512"),
        (["--arms", "off,onn"], "--arms 'onn' is not an arm: did you mean on"),
        (["--arms", ","], "--arms names no arm"),
        (["-pw", "2"], "-pw 2: give 0 (off), 1 (on)"),
        (["-pw", "0", "--arms", "on"], "-pw and --arms both choose the arms"),
        (["-ot", "ffn_gates=CPU"], "-ot 'ffn_gates' matches no weight of the model; near ones are ffn_gate.weight"),
        (["-ot", "ffn_(=CPU"], "is not a regular expression"),
        (["-ot", "ffn_up"], "has no '='"),
        (["-ncmoe", "2"], "-ncmoe 2: tiny-dense has no experts"),
        (["-d", "2000000000"], "the context alone takes"),
        (["-n", "2000000000", "-p", "1"], "a pass would have 2,000,000,001 ubatches"),
        (["-m", "tiny-moe", "--routing", "zipff"], "--routing zipff"),
        (["--n-devices", "10"], "--n-devices 10 leaves a device without any of the 8 layers"),
        (["--n-devices", "3", "-ts", "1/1"], "-ts 1/1 has 2 shares for --n-devices 3"),
        (["-ts", "3,1"], "llama-server only: write one split with /, as for llama-bench, such as 3/1"),
        (["--boot", "1"], "ask for fresh processes with --boots N"),
        (["--nsys"], "--nsys is for --engine llama-bench"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, "--device", "cpu", *arguments, "-o", tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        *(["-r", "0"], ["--slots", "1"], ["--link-gb-s", "0"], ["-lm", "disk"], ["--device", "tpu"], ["--boots", "0"]),
        *(["--op-offload-min-batch", str(10**23)], ["--gate-min-batch", str(2**31)], ["-t", "99999999"]),
        *(["--link-gb-s", "nan"], ["--link-gb-s", "inf"], ["--link-latency-us", "nan"], ["--seed", str(2**32)]),
    ],
)
def test_values_that_click_refuses(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments, "-o", tmp_path / "c") == 2
    last_line = capsys.readouterr().err.splitlines()[-1]
    assert last_line.startswith("Error: Invalid value for")
    assert arguments[0] in last_line


def test_a_truncated_file_is_refused_wherever_it_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = model_path("llama-dense-Q4_0").read_bytes()
    model = tmp_path / "cut.gguf"
    for i in range(20):
        model.write_bytes(whole[: len(whole) * i // 20])
        assert "cut.gguf" in refused(capsys, "-m", model, "-o", tmp_path / "c")


def test_a_file_with_lying_sizes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(model_path("llama-dense-Q4_0").read_bytes())
    data[8:16] = (2**40).to_bytes(8, "little")  # how many tensors there are
    model = tmp_path / "lying.gguf"
    model.write_bytes(data)
    assert "lying.gguf: it claims 1,099,511,627,776 tensors" in refused(capsys, "-m", model, "-o", tmp_path / "c")


def test_an_unknown_architecture_is_refused_with_the_known_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(model, "odd-arch")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    message = refused(capsys, "-m", model, "-o", tmp_path / "c")
    assert "odd-arch" in message
    assert all(name in message for name in ("llama", "qwen2", "qwen3"))


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    message = refused(capsys, *FAST, "-o", tmp_path / "file" / "c")
    assert str(tmp_path / "file") in message


def test_an_existing_capture_stays_without_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c"
    assert run(*FAST, "-o", path) == 0
    before = (path / "manifest.json").read_bytes()
    capsys.readouterr()
    assert "already holds a capture" in refused(capsys, *FAST, "-o", path)
    assert (path / "manifest.json").read_bytes() == before
    assert "is not an arm" in refused(capsys, *FAST, "-o", path, "--force", "--arms", "nonsense")
    assert (path / "manifest.json").read_bytes() == before  # nothing is replaced by a run that cannot start
    assert run(*FAST, "-o", path, "--force", "-ub", "64") == 0
    assert Capture.open(path).manifest.grid["n_ubatch"] == [32, 64]


def test_other_peoples_files_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert "holds other files" in refused(capsys, *FAST, "-o", tmp_path, "--force")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
