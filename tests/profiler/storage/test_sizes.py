"""Sizes that nothing can have: unknown to all that reads a capture, and counted once however often it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hprof
from profiler.capture import Capture
from profiler.compare import compare_captures
from profiler.findings import find
from profiler.report.build import build_report
from profiler.storage.writer import PassKey, new_capture

TIB = 1 << 40


def _imported(path: Path, sizes: list[int | None], **more: Any) -> Capture:
    """Copies on the stream of the kernels, as findings tell of them with their bytes."""
    n = len(sizes)
    starts = [1_000_000 * i for i in range(n)]
    rows: dict[str, Any] = {
        "kind": ["h2d"] * n + ["compute"],
        "stream": ["7"] * (n + 1),
        "device": [0] * (n + 1),
        "t_start": [*starts, n * 1_000_000],
        "t_end": [*(start + 1_000_000 for start in starts), (n + 1) * 1_000_000],
        "bytes": [*sizes, None],
        "source_memory": ["pageable"] * n + [None],
    }
    writer = new_capture(path, source="nsys")
    writer.write_part("events", rows | more, "a")
    writer.finish()
    return Capture.open(path)


@pytest.mark.parametrize("size", [-1, -(10**18), -(2**63), TIB + 1, 2**63 - 1])
def test_an_impossible_size_reads_as_unknown_and_is_counted(tmp_path: Path, size: int) -> None:
    capture = _imported(tmp_path / "c", [0, size, TIB])
    assert capture.warnings == []
    for _ in range(2):
        assert capture.table("events", ["bytes"])["bytes"].to_pylist() == [0, None, TIB, None]
        assert [text.split(": ")[1] for text in capture.warnings] == ["1."]


def test_a_piece_of_a_part_hides_no_count_of_the_whole(tmp_path: Path) -> None:
    capture = _imported(tmp_path / "c", [-5, -6, 7], pass_id=[0, 1, 1, 1], whole_bytes=[-1, 2, 3, None])
    capture.table("events", ["bytes"], pass_ids=[1])
    capture.table("events")
    capture.table("events", ["whole_bytes"])
    assert capture.warnings[0].endswith(": 3.")


@pytest.mark.filterwarnings("error")
def test_findings_say_no_size_where_it_would_overflow(tmp_path: Path) -> None:
    capture = _imported(tmp_path / "c", [-(10**18)] * 100)
    found = {finding.rule: finding.evidence for finding in find(capture)}
    assert "H2D in 100 copies" in found["pageable-copies"]
    assert all(" B" not in evidence and "GB" not in evidence for evidence in found.values())


def test_report_and_comparison_tell_of_them(tmp_path: Path) -> None:
    path = _imported(tmp_path / "c", [-5, 7]).path
    said = "count as unknown: 1."
    assert any(text.endswith(said) for text in build_report(Capture.open(path)).warnings)
    assert {text[0] for text in compare_captures(path, path).warnings if text.endswith(said)} == {"A", "B"}


def test_sizes_of_passes_are_held_to_what_memory_can_be(tmp_path: Path) -> None:
    writer = new_capture(tmp_path / "c", source="llama-bench")
    figures = {"vram_peak": -3, "vram_slots": 2**60, "bytes_h2d": 2 * TIB}
    writer.add_pass_row(0, PassKey("x", 1, 0, 1, 0, 0, 0, 0), t_start=0, t_end=9, **figures)
    writer.finish()
    opened = hprof.open(tmp_path / "c")
    row = opened.passes.loc[0]
    assert row[["vram_peak", "vram_slots"]].isna().all()
    assert row["bytes_h2d"] == 2 * TIB
    assert opened.figures()["vram_peak_bytes"].isna().all()
    assert opened.warnings[0].endswith(": 2.")
