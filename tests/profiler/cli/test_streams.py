"""What becomes of a command whose reader has gone, or whose standard streams are closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiler.capture import Capture
from tests.profiler.makers import dense_off_on
from tests.support import ROOT

HPROF = [sys.executable, "-P", "-m", "hprof"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
TRACE = ROOT / "tests" / "data" / "llama-bench" / "smollm2.jsonl"


def _gone() -> int:
    """The writing end of a pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize("arguments", [["report"], ["report", "--json"], ["--help"]])
def test_a_reader_that_has_gone_is_no_failed_check(tmp_path: Path, arguments: list[str]) -> None:
    dense_off_on(tmp_path / "c")
    command = [*HPROF, *arguments, *([str(tmp_path / "c")] if arguments[0] == "report" else [])]
    pipe = _gone()
    done = subprocess.run(command, env=ENVIRONMENT, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    os.close(pipe)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_sentence_that_nobody_reads(tmp_path: Path) -> None:
    pipe = _gone()
    command = [*HPROF, "report", str(tmp_path / "none")]
    done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=pipe, text=True, check=False)
    os.close(pipe)
    assert (done.returncode, done.stdout) == (141, "")


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
def test_no_file_takes_the_number_of_a_closed_stream(tmp_path: Path, closed: list[int]) -> None:
    code = (
        "import hprof, os, sys\n"
        "code = hprof.main(sys.argv[2:])\n"
        "with open(sys.argv[1], 'w') as told:\n"
        "    null = os.stat(os.devnull)\n"
        "    print(code, told.fileno() > 2, file=told)\n"
        f"    print(*[os.path.samestat(os.fstat(n), null) and os.get_inheritable(n) for n in {closed}], file=told)\n"
    )
    words = [str(tmp_path / "told"), "import", str(TRACE), "-o", str(tmp_path / "c")]
    closing = " ".join(f"{number}>&-" for number in closed)
    subprocess.run(
        ["sh", "-c", f'exec "$@" {closing}', "sh", sys.executable, "-c", code, *words], env=ENVIRONMENT, check=True
    )
    assert (tmp_path / "told").read_text().split() == ["0", "True", *["True"] * len(closed)]
    assert Capture.open(tmp_path / "c").manifest.state == "complete"
