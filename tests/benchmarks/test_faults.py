"""The benchmark of faults calls lost what is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fault_tries import FaultRow, digest, lost_output, lost_recording, wrong_end
from benchmarks.faults import lines_of
from benchmarks.forked_commands import HUNG, EndedCommand
from tests.profiler import makers


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (EndedCommand(HUNG, "", 60.0), "hung"),
        (EndedCommand(130, "Traceback (most recent call last):", 1.0), "Traceback"),
        (EndedCommand(139, "", 1.0), "exit code 139"),
        (EndedCommand(2, "", 1.0), "without a sentence"),
    ],
)
def test_bad_ends(ended: EndedCommand, said: str) -> None:
    assert said in (wrong_end(ended, {0, 2, 130}) or "")


def test_a_good_end() -> None:
    assert wrong_end(EndedCommand(130, "hprof: interrupted", 1.0), {0, 130}) is None


def test_passes_that_are_gone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    capture = makers.interrupted(out)
    n = len(capture.passes)
    assert lost_output("run", out, "", n, None) is None
    assert lost_output("run", out, "", n + 1, None) == f"{n + 1} passes were finished, {n} are read"
    assert lost_output("import", out, "", 0, None) == "an import is running"
    (out / "manifest.json").unlink()
    assert lost_output("run", out, "", n, None) == "no capture, and not the old one"


def test_exports_in_part(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("whole")
    whole = digest(out)
    assert lost_output("export html", out, "", 0, whole) is None
    out.write_text("who")
    assert lost_output("export html", out, "", 0, whole) == "an export is partly there"


def test_recordings_in_part(tmp_path: Path) -> None:
    out = tmp_path / "out"
    n = len(makers.dense_off_on(out, 1).table("events"))
    ended = EndedCommand(0, "", 1.0)
    assert lost_recording(out, ended, n) is None
    assert lost_recording(out, ended, n + 1) == f"{n} of {n + 1} recorded events are there, and nothing is said"
    assert lost_recording(out, EndedCommand(0, "hprof: recording stopped", 1.0), n + 1) is None
    assert lost_recording(tmp_path / "nothing", ended, n) is not None
    assert lost_recording(tmp_path / "nothing", EndedCommand(143, "", 1.0), n) is None


def test_the_table_adds_up() -> None:
    row = FaultRow("SIGKILL", "run")
    row.count(None)
    row.count("hung")
    assert list(lines_of([row]))[2:] == ["| SIGKILL | run | 2 | 1 | 1 |", "| **all** | | 2 | 1 | 1 |"]
