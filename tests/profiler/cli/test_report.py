"""`hprof report` and `hprof list`, called as a user calls them."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import orjson
import pytest
from rich.console import Console

import hprof
from profiler.capture import list_captures
from profiler.cli.list_ import print_captures
from tests.profiler import makers

Captured = pytest.CaptureFixture[str]


def test_an_answer_is_the_default(tmp_path: Path, capsys: Captured) -> None:
    makers.dense_off_on(tmp_path / "c")
    assert hprof.main(["report", str(tmp_path / "c")]) == 0
    out = capsys.readouterr().out
    assert "on is 1.39 x as fast as off" in out
    assert f"hprof report {tmp_path / 'c'} --all" in " ".join(out.split())
    assert len(out.splitlines()) <= 25


@pytest.mark.parametrize("option", [["--all"], ["--cell", "ub=4"], ["--cell", "d=0,p=8"]])
def test_the_rest_is_behind_all_and_cell(tmp_path: Path, capsys: Captured, option: list[str]) -> None:
    makers.dense_off_on(tmp_path / "c")
    assert hprof.main(["report", str(tmp_path / "c"), *option]) == 0
    out = capsys.readouterr().out
    assert "1.39 faster" in out
    assert "-p 8 -n 2 -ub 4 -d 0" in out


@pytest.mark.parametrize(
    ("name", "said"), [("ub=5", "its cells: ub=4"), ("on", "write ub=512"), ("x=4", "write ub=512")]
)
def test_a_cell_that_is_not_there(tmp_path: Path, capsys: Captured, name: str, said: str) -> None:
    makers.dense_off_on(tmp_path / "c")
    assert hprof.main(["report", str(tmp_path / "c"), "--cell", name]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--json"], ["--format", "json"]])
def test_json(tmp_path: Path, capsys: Captured, options: list[str]) -> None:
    makers.dense_off_on(tmp_path / "c")
    assert hprof.main(["report", str(tmp_path / "c"), *options]) == 0
    out = capsys.readouterr()
    assert orjson.loads(out.out)["cells"][0]["against_baseline"]["on"]["ttft_ns"]["verdict"] == "faster"
    assert out.err == ""


def test_markdown_and_noise(tmp_path: Path, capsys: Captured) -> None:
    makers.dense_off_on(tmp_path / "c")
    assert hprof.main(["report", str(tmp_path / "c"), "--format", "md", "--noise", "0.5"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# ")
    assert "no difference" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "nowhere"], "nowhere does not exist"),
        (["report", "."], "hprof import"),
        (["report", ".", "--noise", "2"], "--noise"),
        (["report", ".", "--format", "pdf"], "pdf"),
        (["report"], "CAPTURE"),
        (["list", "nowhere"], "nowhere does not exist"),
    ],
)
def test_wrong_use_is_one_message_and_exit_2(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert hprof.main(arguments) == 2
    out = capsys.readouterr()
    assert said in out.err
    assert "Traceback" not in out.err
    assert out.out == ""


def test_a_broken_part_names_the_file(tmp_path: Path, capsys: Captured) -> None:
    makers.dense_off_on(tmp_path / "c", n_pairs=1)
    part = tmp_path / "c" / "events" / "all-000000.parquet"
    part.write_bytes(part.read_bytes()[:50])
    assert hprof.main(["report", str(tmp_path / "c")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(part) in line


def test_list(tmp_path: Path, capsys: Captured) -> None:
    makers.dense_off_on(tmp_path / "mine", n_pairs=1)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("[]")
    assert hprof.main(["list", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "mine" in out
    assert "off, on" in out
    assert "no hprof manifest" in " ".join(out.split())
    assert out.endswith("\n"), "a shell prompt comes after it"
    assert hprof.main(["list", str(tmp_path), "--json"]) == 0
    listed = orjson.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed["captures"]] == ["mine", "broken"]
    assert listed["captures"][0]["n_passes"] == 4


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_captures_name_is_never_broken(tmp_path: Path, is_terminal: bool) -> None:
    names = ["qwen3-30b-a3b-ub-2048-depth-8192-off-on-hot", "qwen3-30b-a3b-ub-2048-" + 10 * "and-more-"]
    for name in names:
        makers.dense_off_on(tmp_path / name, n_pairs=1)
    out = StringIO()
    print_captures(list_captures(tmp_path), Console(file=out, width=80, force_terminal=is_terminal))
    lines = out.getvalue().splitlines()
    assert {name for name in names for line in lines if line.split()[:1] == [name]} == set(names)
    if not is_terminal:
        assert len(lines) == 3
        assert all("off, on" in line for line in lines[1:])


def test_an_empty_folder_says_what_fills_it(tmp_path: Path, capsys: Captured) -> None:
    assert hprof.main(["list", str(tmp_path)]) == 0
    assert "hprof run" in capsys.readouterr().out


def test_remote_captures(capsys: Captured) -> None:
    from profiler.storage.writer import new_capture

    new_capture("memory://traces/one", force=True).finish()
    assert hprof.main(["report", "memory://traces/one", "--json"]) == 0
    assert orjson.loads(capsys.readouterr().out)["capture"] == "memory://traces/one"
    assert hprof.main(["list", "memory://traces"]) == 0
