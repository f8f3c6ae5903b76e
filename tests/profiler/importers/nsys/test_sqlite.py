"""A .nsys-rep goes through nsys where it is installed, and says what to type where it is not."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import pytest

import hprof
from executor.errors import HprofError
from profiler.importers import read_file
from profiler.importers.nsys import sqlite
from tests.profiler.importers.nsys.exports import KERNEL, events, kernel, write_export


def _install(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "nsys"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def _report(folder: Path) -> Path:
    path = folder / "run.nsys-rep"
    path.write_bytes(b"\x00 a format of its own")
    return path


def test_without_nsys_the_error_holds_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HprofError, match=r"`nsys export --type sqlite --output run\.sqlite run\.nsys-rep`"):
        read_file(_report(tmp_path))


def test_nsys_exports_to_a_folder_that_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    made = write_export(tmp_path / "made.sqlite", {KERNEL: [kernel(5, 9)]})
    script = f'echo "$@" > {tmp_path}/said\nwhile [ "$1" != --output ]; do shift; done\ncp {made} "$2"'
    _install(tmp_path, script, monkeypatch)
    report = _report(tmp_path)
    assert events(read_file(report), "name") == [{"name": "matmul(float*)"}]
    said = (tmp_path / "said").read_text()
    assert said.startswith("export --type sqlite --force-overwrite true --output ")
    assert said.strip().endswith(str(report))
    assert not list(scratch.iterdir())


def test_what_nsys_complains_of_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, "echo 'wrong version' >&2\nexit 3", monkeypatch)
    with pytest.raises(HprofError, match="wrong version"):
        read_file(_report(tmp_path))


def test_an_nsys_that_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, "exit 0", monkeypatch)
    with pytest.raises(HprofError, match="exit code 0"):
        read_file(_report(tmp_path))


def test_ctrl_c_while_sqlite_reads_is_no_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """sqlite3 drops what its progress handler raises, which is where the signal's exception comes up."""

    def interrupted(_: sqlite.SqliteTables) -> bool:
        raise KeyboardInterrupt

    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER)")
        db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?)", [(n, n + 1) for n in range(10_000)])
    monkeypatch.setattr(sqlite, "_OPS_PER_TICK", 100)
    monkeypatch.setattr(sqlite.SqliteTables, "_tick", interrupted)
    assert hprof.main(["import", str(path), "-o", str(tmp_path / "c")]) == 130
    assert capsys.readouterr().err.split() == ["hprof:", "interrupted"]
    assert not (tmp_path / "c").exists()
