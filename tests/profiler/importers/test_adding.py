"""The importer of docs/adding-an-importer.md works as it stands there, registered by its one line."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from profiler.capture import Capture
from profiler.findings import find
from profiler.importers import FORMATS, detect, import_files
from profiler.importers.base import file_endings, trace_format
from tests.profiler.importers import test_base, test_hostile
from tests.support import ROOT

PAGE = (ROOT / "docs" / "adding-an-importer.md").read_text(encoding="utf-8")
_MODULE, _TESTS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (kind, module) = re.findall(r'^    "(.*)": "(.*)",$', PAGE, re.MULTILINE)[0]
    assert module == f"profiler.importers.{kind}"
    (tmp_path / "copytrace_of_the_docs.py").write_text(_MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(FORMATS, kind, "copytrace_of_the_docs")


def test_its_own_tests_pass(tmp_path: Path) -> None:
    (tmp_path / "the_tests.py").write_text(_TESTS, encoding="utf-8")
    names = runpy.run_path(str(tmp_path / "the_tests.py"))
    tests = {name: test for name, test in names.items() if name.startswith("test_")}
    assert len(tests) == 4
    for name, test in tests.items():
        (tmp_path / name).mkdir()
        test(tmp_path / name)


def test_only_it_knows_its_sample(tmp_path: Path) -> None:
    path = tmp_path / "sample"
    path.write_bytes(trace_format("copytrace").sample())
    assert detect(path) == "copytrace"
    assert "csv" in file_endings()


@pytest.mark.parametrize(
    "test",
    [
        test_base.test_a_format_knows_and_reads_its_own_sample_and_no_other_does,
        test_base.test_what_is_not_read_packed_is_refused,
        test_hostile.test_flipped_bytes,
        test_hostile.test_cut_short,
        test_hostile.test_any_type_in_any_cell,
    ],
)
def test_it_passes_what_every_format_does(tmp_path: Path, test: Callable[[Path, str], None]) -> None:
    test(tmp_path, "copytrace")


def test_a_capture_comes_out_with_figures_and_findings(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_bytes(trace_format("copytrace").sample() + b"compute,gemm,0,compute,9000,8000,\n")
    capture = Capture.open(import_files([path], tmp_path / "out"))
    assert (capture.manifest.source, capture.manifest.dropped) == ("copytrace", {"row: end before start": 1})
    assert capture.table("events").num_rows == 2
    told = {finding.rule: finding.evidence for finding in find(capture)}
    assert told["dropped-events"] == "1 row of the source left out: 1 row: end before start."
