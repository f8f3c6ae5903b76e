"""`hprof export` as a user types it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from hprof import main
from tests.profiler.makers import dense_off_on


def test_it_writes_and_says_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dense_off_on(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert main(["export", "run"]) == 0
    assert capsys.readouterr().out == "Wrote run.trace.json\n"
    assert json.loads((tmp_path / "run.trace.json").read_text())["otherData"]["captures"] == ["run"]


def test_it_never_overwrites_without_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dense_off_on(tmp_path / "run")
    out = tmp_path / "r.html"
    out.write_text("mine")
    arguments = ["export", str(tmp_path / "run"), "--format", "html", "-o", str(out)]
    assert main(arguments) == 2
    assert "already there" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main([*arguments, "--force"]) == 0


@pytest.mark.parametrize(("form", "inside"), [("html", "manifest.json"), ("parquet", "."), ("chrome", "passes/p.json")])
def test_force_never_replaces_a_part_of_the_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, inside: str
) -> None:
    dense_off_on(tmp_path / "run")
    (tmp_path / "run" / "passes" / "p.json").touch()
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    out = tmp_path / "run" / inside
    assert main(["export", str(tmp_path / "run"), "--format", form, "-o", str(out), "--force"]) == 2
    assert "part of the capture" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_it_packs_where_the_name_says_so(tmp_path: Path) -> None:
    dense_off_on(tmp_path / "run")
    out = tmp_path / "t.json.gz"
    assert main(["export", str(tmp_path / "run"), "-o", str(out)]) == 0
    assert json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]


def test_bad_input_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dense_off_on(tmp_path / "run", 1)
    assert main(["export", str(tmp_path / "none")]) == 2
    assert main(["export", str(tmp_path / "run"), "--passes", "99"]) == 2
    assert main(["export", str(tmp_path / "run"), "-o", str(tmp_path / "no" / "folder" / "x")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [line.startswith("hprof: ") for line in errors] == [True] * 3
