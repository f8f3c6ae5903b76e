"""The examples of docs/measuring-your-code.md run as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hprof import main
from profiler.capture import Capture
from tests.support import ROOT

PAGE = (ROOT / "docs" / "measuring-your-code.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in the page's order."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def timed_alike(text: str) -> list[str]:
    """The words, but for what a clock has a part in: wall times, their intervals and verdicts."""
    lines: list[str] = []
    for line in text.splitlines():
        is_timed = line.startswith("wall") or (lines and lines[-1].startswith("wall"))
        # an interval that rounds to its median is not printed
        masked = re.sub(r" \([^)]*\)| \[[^]]*\]| (faster|slower|unclear|no difference)$", "", line)
        lines.append(re.sub(r"\d[\d.]*", "N", masked) if is_timed else line)
    return " ".join(lines).split()


def test_the_two_commands_to_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    [example] = blocks("bash")
    program, *arguments = shlex.split(example)
    assert program == "hprof"
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "t/s: 21.0 with on, 10.5 with off: 2.00 x as fast, faster." in " ".join(printed.split())
    assert main(["report", "traces/mine", "--all"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^t/s +10\.5 +21\.0$", printed, re.MULTILINE)
    assert "in wall time" in printed
    [shown] = re.findall(r"^```\n(all passes\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert timed_alike(shown) == timed_alike(printed[printed.index("all passes") :])[: len(timed_alike(shown))]


@pytest.mark.parametrize("number", [0, 1], ids=["two callables", "inside one piece of code"])
def test_the_python_examples(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("python")[number], f"example {number}", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    if number == 0:
        assert printed.startswith("on against off: ")
        assert "x as fast in wall time" in printed
        assert Capture.open("traces/mine-recorded").manifest.state == "complete"
    else:
        by_layer = re.findall(r"^(\d)\.?0? +(\d+)$", printed, re.MULTILINE)
        assert [layer for layer, _ in by_layer] == ["0", "1", "2", "3"]
        assert len({count for _, count in by_layer}) == 1
