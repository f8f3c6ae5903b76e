"""An export that does not come to its end leaves what was there, and nothing of its own."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from executor.errors import HprofError
from profiler.export import FORMATS, Format, export
from profiler.export.output import output_file, remove_left_over
from tests.profiler.makers import dense_off_on, empty, moe_off_on, passes_without_events
from tests.support import ROOT, contents


@contextmanager
def _files_of_at_most(n_bytes: int) -> Iterator[None]:
    """As on a full disk, a write beyond it fails half-way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["out", "out.gz"])
@pytest.mark.parametrize("form", FORMATS)
def test_a_full_disk_leaves_the_file_that_was_there(tmp_path: Path, form: Format, name: str) -> None:
    old, new = passes_without_events(tmp_path / "old"), dense_off_on(tmp_path / "new")
    out = tmp_path / "exports" / name
    out.parent.mkdir()
    export([old], form, out)
    before = contents(out.parent)
    with _files_of_at_most(1000), pytest.raises(HprofError, match=r"cannot be written: File too large"):
        export([new], form, out, force=True)
    assert contents(out.parent) == before
    export([new], form, out, force=True)
    assert contents(out.parent) != before


@pytest.mark.parametrize("form", FORMATS)
def test_a_full_disk_leaves_nothing_where_nothing_was(tmp_path: Path, form: Format) -> None:
    capture = dense_off_on(tmp_path / "c")
    (tmp_path / "exports").mkdir()
    with _files_of_at_most(1000), pytest.raises(HprofError, match="cannot be written"):
        export([capture], form, tmp_path / "exports" / "out")
    assert list((tmp_path / "exports").iterdir()) == []


@pytest.mark.parametrize("stop", [KeyboardInterrupt, HprofError])
def test_an_interrupted_export_leaves_the_file_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    out = tmp_path / "exports" / "out.json"
    out.parent.mkdir()
    out.write_text("mine")

    def stopped(*_: object) -> None:
        raise stop("in the middle")

    monkeypatch.setattr("profiler.export.chrome.arrow_lines", stopped)
    with pytest.raises(stop):
        export([dense_off_on(tmp_path / "c")], "chrome", out, force=True)
    assert contents(out.parent) == {"out.json": b"mine"}


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_of_two_captures_never_lie_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Format
) -> None:
    out = tmp_path / "out"
    export([moe_off_on(tmp_path / "a")], form, out)
    before = contents(out)

    def no_figures(*_: object) -> None:
        raise HprofError("the last table cannot be made.")

    monkeypatch.setattr("profiler.export.tables.figures_table", no_figures)
    with pytest.raises(HprofError, match="last table"):
        export([dense_off_on(tmp_path / "b")], form, out, force=True)
    assert contents(out) == before


KILLED = (
    "import os, signal, sys; import hprof; from profiler.export import tables\n"
    "tables.figures_table = lambda *_: os.kill(os.getpid(), int(sys.argv[1]))\n"
    "sys.exit(hprof.main(['export', sys.argv[2], '--format', 'csv', '-o', sys.argv[3]]))\n"
)


def _export_killed_by(number: signal.Signals, capture: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", KILLED, str(int(number)), str(capture), str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_what_a_killed_export_left_blocks_nothing_and_goes(tmp_path: Path) -> None:
    moe_off_on(tmp_path / "killed")
    out = tmp_path / "out"
    assert _export_killed_by(signal.SIGKILL, tmp_path / "killed", out).returncode == -signal.SIGKILL
    assert any(name.startswith(".experts.csv.") for name in contents(out))
    (out / ".events.csv.bak.1.tmp").write_text("of another file")
    export([dense_off_on(tmp_path / "c")], "csv", out)  # no `experts`
    left_over = [name for name in contents(out) if name.startswith(".")]
    assert left_over == [".events.csv.bak.1.tmp"]
    assert (out / "events.csv").is_file()


def test_a_terminated_export_leaves_nothing(tmp_path: Path) -> None:
    dense_off_on(tmp_path / "c")
    done = _export_killed_by(signal.SIGTERM, tmp_path / "c", tmp_path / "out")
    assert done.returncode == 143, done.stderr
    assert done.stderr.strip() == "hprof: terminated"
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_being_written_is_not_taken_for_left_over(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    with output_file(out) as file:
        remove_left_over(out)
        file.write(b"whole")
    assert contents(tmp_path) == {"report.html": b"whole"}


def test_a_link_stays_a_link_and_permissions_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "kept" / "report.html", tmp_path / "latest.html"
    target.parent.mkdir()
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    export([dense_off_on(tmp_path / "c", 1)], "html", link, force=True)
    assert link.is_symlink()
    assert target.read_text().startswith("<!doctype html>")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        # small enough for the pipe's buffer
        export([empty(tmp_path / "c")], "chrome", pipe, force=True)
        assert os.read(reader, 1 << 16).startswith(b'{"displayTimeUnit"')
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_link_that_leads_to_itself_is_one_sentence(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(HprofError, match="loop cannot be written: Too many levels of symbolic links"):
        export([empty(tmp_path / "c")], "chrome", loop)
