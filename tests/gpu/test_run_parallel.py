"""Tests of a GPU in parallel processes, here with processes that print what pytest would."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.gpu.run_parallel import _ALONE, ROOT, Outcome, ParallelRun, Part, gpu_parts, main, reasons, table

PASSES = """
print("tests/gpu/test_cuda_a.py::test_one[80 wide] PASSED   [ 50%]")
print("tests/gpu/test_cuda_a.py::test_two SKIPPED (needs two GPUs)   [100%]")
print("SKIPPED [1] tests/gpu/test_cuda_a.py:12: needs two GPUs")
"""
FAILS = """
print("tests/gpu/test_cuda_b.py::test_one[x] FAILED   [100%]")
print("FAILED tests/gpu/test_cuda_b.py::test_one[x] - AssertionError: 3 is not 4")
raise SystemExit(1)
"""
CRASHES = """
import os
print("tests/gpu/test_cuda_c.py::test_first PASSED   [ 50%]")
print("tests/gpu/test_cuda_c.py::test_second ", flush=True)
os.abort()
"""
HANGS = """
import time
print("tests/gpu/test_cuda_d.py::test_waits ", flush=True)
time.sleep(60)
"""
IMPORTS_NOTHING = """
print("ERROR tests/gpu/test_cuda_e.py - ImportError: no torch")
raise SystemExit(2)
"""


def run(
    tmp_path: Path, scripts: dict[str, str], alone: str = "", limit_s: float = 30, total_s: float = 60
) -> dict[str, Outcome]:
    parts = [Part(name, (), is_alone=name == alone) for name in scripts]
    found = ParallelRun(
        tmp_path, tmp_path / "cache", workers=3, limit_s=limit_s, total_s=total_s,
        command_of=lambda part: [sys.executable, "-c", scripts[part.name]],
    ).run(parts)  # fmt: skip
    assert sorted(outcome.part.name for outcome in found) == sorted(scripts)
    return {outcome.part.name: outcome for outcome in found}


def test_each_outcome_says_what_and_why(tmp_path: Path) -> None:
    found = run(tmp_path, {"passes": PASSES, "fails": FAILS, "crashes": CRASHES, "imports": IMPORTS_NOTHING})
    assert [name for name, outcome in found.items() if outcome.is_good] == ["passes"]
    assert found["fails"].failures == [("tests/gpu/test_cuda_b.py::test_one[x]", "AssertionError: 3 is not 4")]
    told = "\n".join(reasons(list(found.values())))
    assert "crashes: exit code -6\n    under way: tests/gpu/test_cuda_c.py::test_second" in told
    assert "FAILED tests/gpu/test_cuda_e.py: ImportError: no torch" in told
    assert "skipped 1: needs two GPUs" in told
    rows = {line.split()[0]: line.split()[1:] for line in table(found.values())}
    assert rows["passes"][:2] == ["1", "1"]
    assert rows["fails"][0] == "1"


def test_a_part_ends_at_its_limit(tmp_path: Path) -> None:
    assert run(tmp_path, {"hangs": HANGS}, limit_s=0.3)["hangs"].ended == "ended at its limit of 0.3 s"


NOTES_ITS_TIMES = """
import pathlib, time
begun = time.monotonic()
time.sleep(0.2)
pathlib.Path({path!r}).write_text(f"{{begun}} {{time.monotonic()}}")
"""


def test_what_must_run_alone_does(tmp_path: Path) -> None:
    paths = {name: tmp_path / name for name in ("a", "b", "alone")}
    run(tmp_path, {name: NOTES_ITS_TIMES.format(path=str(path)) for name, path in paths.items()}, alone="alone")
    times = {name: [float(number) for number in path.read_text().split()] for name, path in paths.items()}
    assert times["alone"][0] >= max(times["a"][1], times["b"][1])


def test_the_total_ends_what_runs_and_what_waits(tmp_path: Path) -> None:
    found = run(tmp_path, {"hangs": HANGS, "waits": PASSES}, alone="waits", total_s=0.5)
    assert found["hangs"].ended == "ended as the total was over"
    assert found["waits"].ended == "not begun: the total was over"


def test_parts_have_every_file_and_cut_it_without_a_rest() -> None:
    parts = gpu_parts()
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/gpu").glob("test_cuda_*.py")}
    assert {file for part in parts for file in part.files} == {*files, "tests/executor"}
    engine = [part.selected for part in parts if part.name.startswith("engine")]
    assert engine[0] == "(reference_logits)"
    assert engine[-1] == " and ".join(
        f"not ({word})"
        for word in ("reference_logits", "bit_identical and dtype0", "bit_identical and dtype1", "divided")
    )
    alone = [part.name for part in parts if part.is_alone]
    assert alone == [part.name for part in parts[-len(_ALONE) :]] == [*_ALONE]


def test_a_part_is_a_pytest_command() -> None:
    for part in gpu_parts():
        command = part.command()
        assert command[:3] == [sys.executable, "-m", "pytest"]
        assert command[-len(part.files) :] == list(part.files)
        assert ("-k" in command) == bool(part.selected)


@pytest.mark.parametrize("words", [["--only", "zzz"], ["--only", "both", "--workers", "0"]])
def test_a_run_of_nothing_is_no_success(words: list[str]) -> None:
    assert CliRunner().invoke(main, words).exit_code == 2
