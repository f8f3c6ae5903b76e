"""`hprof compare` as a user, and a build, types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hprof import main
from tests.profiler.makers import dense_off_on, imported_without_passes, passes_without_events


@pytest.fixture
def arms(tmp_path: Path) -> tuple[str, str]:
    dense_off_on(tmp_path / "run")
    return f"{tmp_path / 'run'}#off", f"{tmp_path / 'run'}#on"


def test_the_answer_stands_first(arms: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *arms, "--all"]) == 0
    out = capsys.readouterr().out
    order = ["TTFT", "prefill", "decode", "Why, ", "Configuration", "changes, largest first", "B against A: "]
    assert [out.index(text) for text in order] == sorted(out.index(text) for text in order)
    assert "faster" in out


def test_the_first_screen_is_the_answer_and_says_how_to_see_the_rest(
    arms: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *arms]) == 0
    short = capsys.readouterr().out
    assert "largest first" not in short
    assert "All 16 figures: --all." in short
    assert main(["compare", *arms, "--top", "1"]) == 0
    assert "largest first (1 of" in capsys.readouterr().out
    imported_without_passes(tmp_path / "trace")
    assert main(["compare", str(tmp_path / "trace"), str(tmp_path / "trace")]) == 0
    assert "h2d rate" in capsys.readouterr().out, "where nothing leads, all there is"


def test_gates_set_the_exit_code(arms: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    off, on = arms
    assert main(["compare", off, on, "--fail-on", "ttft>+5%"]) == 0
    assert main(["compare", on, off, "--fail-on", "ttft>+5%"]) == 1
    assert main(["compare", on, off, "--fail-on", "ttft>+50%"]) == 0
    assert main(["compare", off, on, "--fail-on", "ttft>+5%", "--fail-on", "decode<+90%"]) == 1
    assert "FAILED: fail on decode<+90%" in capsys.readouterr().out
    assert main(["compare", on, off, "--fail-on", "ttft>+5%", "--fail-on", "prefill<-40%"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "To fail, a comparison has to be beyond its limit by the 97.5 % that 2 comparisons ask for." in out
    assert main(["compare", off, on, "--fail-on", "nonsense"]) == 2


def test_inconclusive_fails_unless_allowed(tmp_path: Path) -> None:
    passes_without_events(tmp_path / "lb")
    arguments = ["compare", f"{tmp_path / 'lb'}#-pw 0", f"{tmp_path / 'lb'}#-pw 1", "--fail-on", "prefill<-1%"]
    assert main(arguments) == 1
    assert main([*arguments, "--allow-inconclusive"]) == 0


def test_json_holds_every_change(arms: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *arms, "--json", "--top", "1", "--fail-on", "ttft>+5%"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == 1
    assert {change["figure"] for change in content["changes"]} >= {"ttft_ns", "bytes_h2d", "hidden_ratio"}
    assert (content["gates"][0]["state"], content["gates"][0]["comparisons"]) == ("passed", 1)
    assert content["gate_ground"] == {"comparisons": 1, "level": 0.95}
    ttft = next(change for change in content["changes"] if change["figure"] == "ttft_ns")
    assert (ttft["verdict"], ttft["pairs"], ttft["per"]) == ("faster", 6, "pass")
    copied = next(change for change in content["changes"] if change["figure"] == "bytes_h2d")
    assert (copied["verdict"], copied["per"]) == (None, "token")


def test_the_comment_is_markdown_that_nothing_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dense_off_on(tmp_path / "a_<b>|c`")
    path = str(tmp_path / "a_<b>|c`")
    assert main(["compare", f"{path}#off", f"{path}#on", "--format", "md", "--fail-on", "ttft>+5%"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("### hprof: B against A: ")
    assert "- ✅ passed: fail on ttft" in out
    assert "<b>" not in out
    assert r"a\_\<b\>\|c\`" in out
    header = next(line for line in out.splitlines() if line.startswith("| figure"))
    rows = [line for line in out.splitlines() if line.startswith("| TTFT")]
    assert header.count(" | ") == rows[0].count(" | ")
