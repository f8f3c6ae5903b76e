"""Kinds are told from content."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.errors import HprofError
from profiler.importers import FORMATS, ImportOptions, detect, read_file
from profiler.importers.base import HEAD_BYTES, file_endings, trace_format, without_ending
from tests.support import ROOT, shared_path


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"SQLite format 3\x00...", "nsys"),
        (b"NOTICE: x\nStart (ns),Duration (ns),CorrId,SrcMemKd\n", "nsys-stats"),
        (b'{"schemaVersion": 1, "traceEvents": []}', "kineto"),
        (b'  [{"ph": "X", "name": "k"}]', "kineto"),
        (b'[{"build_commit": "abc"}]', "llama-bench"),
        (b'{"build_commit": "abc"}\n', "llama-bench"),
        (b"build_commit,build_number\n", "llama-bench"),
        (b"| model | size |\n", "llama-bench"),
    ],
)
def test_kinds(tmp_path: Path, content: bytes, kind: str) -> None:
    plain, packed = tmp_path / "trace", tmp_path / "packed"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    assert detect(plain) == kind
    assert detect(packed) == kind


def test_a_short_gzip_that_was_cut_off_is_told_by_what_unpacks(tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [{"ph": "X"}]}')[:-6])
    assert detect(path) == "kineto"


def test_a_report_is_known_by_its_ending(tmp_path: Path) -> None:
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"anything")
    assert detect(path) == "nsys"


@pytest.mark.parametrize("folder", ["kineto", "llama-bench"])
def test_samples_of_the_repository(folder: str) -> None:
    _check_samples(ROOT / "tests" / "data" / folder)


@pytest.mark.parametrize("folder", ["kineto", "llama-bench", "nsys"])
def test_samples(folder: str) -> None:
    _check_samples(shared_path("data", folder))


def _check_samples(folder: Path) -> None:
    samples = [p for p in folder.rglob("*") if p.name.split(".")[-1] in _ENDINGS[folder.name]]
    traces = [p for p in samples if "golden" not in p.name and ".native." not in p.name]
    assert traces
    assert {detect(path) for path in traces} == {folder.name}


_ENDINGS = {
    "kineto": ("gz",),
    "llama-bench": ("json", "jsonl", "csv", "sql", "md"),
    "nsys": ("sqlite",),
}


@pytest.mark.parametrize("content", [b"hello", b"{}", b"[]", b"\x1f\x8b broken gzip", b"\x7fELF"])
def test_what_is_no_trace_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(HprofError, match=r"x\.bin .*--kind"):
        detect(path)


@pytest.mark.parametrize("kind", [None, *FORMATS])
def test_an_empty_file_is_refused_unread(tmp_path: Path, kind: str | None) -> None:
    """Files of the system have no size; reading some of them waits for ever, whatever `--kind` says."""
    path = tmp_path / "x.bin"
    path.touch(mode=0o000)
    with pytest.raises(HprofError, match=r"x\.bin is empty; write the trace again"):
        read_file(path, kind)


def test_a_gzip_bomb_is_read_no_further_than_its_head(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"\x00" * 50_000_000))
    with pytest.raises(HprofError, match=r"bomb\.gz"):
        detect(path)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HprofError, match="does not exist"):
        detect(tmp_path / "nowhere")


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_any_bytes_are_a_kind_or_a_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    try:
        found: str = detect(path)
    except HprofError as error:
        found = str(error)
    assert found in FORMATS or "x.bin" in found


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if not trace_format(kind).reads_gzip])
def test_what_is_not_read_packed_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "bench.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"build_commit": "abc"}\n'))
    with pytest.raises(HprofError, match=r"bench\.jsonl\.gz is packed with gzip.*kineto.*gunzip it first"):
        read_file(path, kind)


def test_a_pipe_is_refused_even_where_its_kind_is_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(HprofError, match="pipe is not a regular file"):
        read_file(tmp_path / "pipe", "kineto")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_format_knows_and_reads_its_own_sample_and_no_other_does(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "sample"
    path.write_bytes(trace_format(kind).sample())
    head = path.read_bytes()[:HEAD_BYTES]
    assert [other for other in FORMATS if trace_format(other).detect(path, head)] == [kind]
    found = trace_format(kind).read(path, ImportOptions())
    assert sum(table.num_rows for table in found.tables.values()) > 0
    assert not +found.dropped


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("3.1.2_run.sqlite", "3.1.2_run"),
        ("a.pt.trace.json.gz", "a"),
        ("RUN.NSYS-REP", "RUN"),
        ("run_pqtdir", "run"),
        ("run.perfetto", "run.perfetto"),
        (".json", ".json"),
    ],
)
def test_a_capture_is_named_like_its_trace_without_the_ending(name: str, stem: str) -> None:
    assert without_ending(name) == stem


def test_reports_that_need_nsys_are_no_uploads() -> None:
    assert {"csv", "gz", "json", "sqlite"} <= set(file_endings())
    converted = {ending.lstrip(".") for kind in FORMATS for ending in trace_format(kind).converted_endings}
    assert "nsys-rep" in converted
    assert not converted & set(file_endings())


def test_an_unknown_kind_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"{}")
    with pytest.raises(HprofError, match=r"no kind of trace called 'perfetto'; hprof reads nsys, .*llama-bench"):
        read_file(path, "perfetto")


def test_the_list_of_kinds_is_light() -> None:
    code = "import sys, profiler.importers.base; print({'numpy', 'pyarrow', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
