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
