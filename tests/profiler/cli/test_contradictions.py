"""Options that contradict each other, that are empty, or that a command takes no notice of: one sentence says so."""

from __future__ import annotations

from pathlib import Path

import pytest

import hprof
from tests.profiler import makers

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def capture(tmp_path: Path) -> str:
    makers.dense_off_on(tmp_path / "c")
    return str(tmp_path / "c")


def refused(capsys: Captured, *words: str) -> str:
    """What the command says as it refuses these words: one line, and nothing beside it."""
    assert hprof.main(list(words)) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    return told.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "{}", "--json", "--format", "md"], "--json and --format md contradict"),
        (["report", "{}", "--json", "--format", "terminal"], "--json and --format terminal contradict"),
        (["report", "{}", "--cell", "ub=4,ub=8"], "gives ub twice"),
        (["compare", "{}", "{}", "--json", "--format", "md"], "--json and --format md contradict"),
        (["compare", "{}", "{}", "--all", "--top", "3"], "--top 3 and --all contradict"),
        (["compare", "{}#off,ub=4,ub=8", "{}"], "gives ub twice"),
        (["predict", "--force"], "--force replaces the capture at -o, and none is kept here: add -o DIR"),
        (["run", "--device", "sim", "-fa", "banana"], "-fa banana: give 1, 0, on, off or auto"),
        (["predict", "-fa", "0,1"], "-fa 0,1: give 1, 0, on, off or auto"),
        (
            ["run", "--device", "sim", "--no-record", "--recorder", "native"],
            "--no-record and --recorder native exclude",
        ),
        (["run", "-m", "tiny-dense", "-m", "tiny-moe"], "-m is given 2 times: one run is of one model; give one here"),
        (["predict", "-m", "tiny-dense", "--config", "tiny-moe"], "and run again for tiny-moe"),
    ],
)
def test_contradictions_are_refused(capture: str, capsys: Captured, words: list[str], said: str) -> None:
    assert said in refused(capsys, *(word.format(capture) for word in words))


@pytest.mark.parametrize(
    "words",
    [["--json", "--format", "json"], ["--json", "--all"], ["--cell", "ub=4,ub=4"], ["--cell", "ub=4", "--cell", "n=2"]],
)
def test_what_agrees_is_not(capture: str, words: list[str]) -> None:
    assert hprof.main(["report", capture, *words]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", ""], "CAPTURE is empty"),
        (["compare", "{}", " "], "B is empty"),
        (["predict", "--against", ""], "--against is empty"),
        (["predict", "--fit", "{}", "--fit", ""], "--fit is empty"),
        (["predict", "--probe", ""], "--probe is empty"),
        (["advise", "--fit", "", "--vram-budget", "1GiB"], "--fit is empty"),
        (["run", "--device", "sim", "-o", ""], "--output is empty"),
        (["import", "{}", "-o", ""], "--output is empty"),
        (["doctor", ""], "DIR is empty"),
        (["list", ""], "DIR is empty"),
        (["dashboard", ""], "TRACES is empty"),
    ],
)
def test_an_empty_name_is_no_folder(
    capture: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    """A variable of the shell that is not set would stand for the folder one is in."""
    monkeypatch.chdir(capture)
    assert said in refused(capsys, *(word.format(capture) for word in words))


@pytest.mark.usefixtures("own_cache")
def test_advise_says_what_it_searches_whatever_is_given(capsys: Captured) -> None:
    words = ["advise", "-m", "tiny-moe", "--vram-budget", "1GiB", "-p", "32", "-n", "0"]
    assert hprof.main([*words, "-ub", "8", "-ncmoe", "2"]) == 0
    assert "-ub and -ncmoe do nothing here" in " ".join(capsys.readouterr().out.split())
    assert hprof.main(words) == 0
    assert "nothing here" not in capsys.readouterr().out


def test_a_model_of_the_environment_is_one_with_its_blanks(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPROF_PREDICT_MODEL", "my model.gguf")
    assert "my model.gguf" in refused(capsys, "predict")
    monkeypatch.setenv("HPROF_PREDICT_MODEL", "tiny-dense")
    assert hprof.main(["predict", "--device", "sim"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "-p", "５12"], "-p '５12' is not a number"),
        (["run", "--device", "sim", "--device-memory", "５G"], "--device-memory '５G' is not a size"),
        (["run", "-ts", "３/1"], "-ts '３/1' is not a list of shares"),
        (["run", "--device", "sim", "-m", "tiny-moe", "--routing", "zipf:s=１"], "is '１', but must be a number"),
        (["run", "--layers", "４"], "'４' is not a number: write it with the digits 0 to 9"),
        (["run", "--link-gb-s", "４"], "'４' is not a number: write it with the digits 0 to 9"),
        (["import", "{}", "--range", "off=０ms:5ms"], "--range '０ms'"),
        (["report", "{}", "--cell", "ub=４"], "names no sizes"),
        (["compare", "{}", "{}", "--fail-on", "ttft>５%"], "--fail-on"),
    ],
)
def test_digits_of_other_scripts_are_no_numbers(capture: str, capsys: Captured, words: list[str], said: str) -> None:
    assert hprof.main([word.format(capture) for word in words]) == 2
    assert said in capsys.readouterr().err
