"""Rows read by number are those of the whole table, whatever the parts and row groups they lie in. Sizes that
nothing can have: unknown to all that reads a capture, and counted once however often it is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hprof
from executor.errors import HprofError
from profiler.capture import Capture
from profiler.compare import compare_captures
from profiler.findings import find
from profiler.metrics.timeline import TIMELINE_COLUMNS, load_timeline
from profiler.report.build import build_report
from profiler.storage.parts import StoredRows
from profiler.storage.store import Store
from profiler.storage.writer import PassKey, new_capture
from tests.profiler import makers

PASSES = [0, 0, 1, 1, 1, 2, None, 0, 2, 2]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two parts of `events` in row groups of two rows; `bytes` numbers the rows."""
    (tmp_path / "events").mkdir()
    for part, rows in (("a", slice(0, 7)), ("b", slice(7, 10))):
        ids, numbers = pa.array(PASSES[rows], pa.int32()), pa.array(np.arange(10)[rows])
        pq.write_table(
            pa.table({"pass_id": ids, "bytes": numbers}), tmp_path / f"events/{part}.parquet", row_group_size=2
        )
    return Store(tmp_path)


@pytest.mark.parametrize("pass_ids", [None, [0], [1], [2, 0], [7], []])
def test_numbers_mean_rows_of_the_whole(store: Store, pass_ids: list[int] | None) -> None:
    rows = StoredRows(store, "events", ["a", "b"], pass_ids)
    expected = [n for n, pass_id in enumerate(PASSES) if pass_ids is None or pass_id in pass_ids]
    assert len(rows) == len(expected)
    assert rows.table(["bytes"])["bytes"].to_pylist() == expected
    for numbers in (np.arange(len(rows))[::-1], np.arange(len(rows))[1::2], np.empty(0, np.int64)):
        found = rows.take(numbers, ["slot", "bytes"])
        assert found["bytes"].to_pylist() == [expected[n] for n in numbers]
        assert found["slot"].null_count == len(numbers)  # a column that the file lacks


def test_impossible_sizes_are_null_here_too(store: Store, tmp_path: Path) -> None:
    numbers = pa.array([5, -1, 2**62, 6])
    pq.write_table(pa.table({"bytes": numbers}), tmp_path / "events/a.parquet", row_group_size=2)
    rows = StoredRows(store, "events", ["a"])
    assert rows.table(["bytes"])["bytes"].to_pylist() == [5, None, None, 6]
    assert rows.take(np.array([1, 3]), ["bytes"])["bytes"].to_pylist() == [None, 6]


def test_a_part_that_changed_is_told(store: Store, tmp_path: Path) -> None:
    rows = StoredRows(store, "events", ["a", "b"], [0])
    pq.write_table(pa.table({"pass_id": pa.array([0], pa.int32())}), tmp_path / "events/b.parquet")
    with pytest.raises(HprofError, match="changed while it was looked at"):
        rows.take(np.array([2]), ["bytes"])


def test_a_timeline_on_demand_is_the_same(tmp_path: Path) -> None:
    capture = makers.dense_off_on(tmp_path / "c", n_pairs=2)
    for pass_ids in ([3], [2, 5], None):
        whole, asked = (load_timeline(capture, pass_ids, on_demand=on_demand) for on_demand in (False, True))
        assert whole.lanes == asked.lanes
        for name in ("start", "end", "role", "number", "first"):
            assert np.array_equal(getattr(whole, name), getattr(asked, name))
        rows = np.arange(len(whole))[::-3]
        for chosen in (slice(None), slice(1, 4), rows):
            told = [line.table(TIMELINE_COLUMNS, chosen).to_pylist() for line in (whole, asked)]
            assert told[0] == told[1]


def test_a_capture_without_events_has_an_empty_timeline(tmp_path: Path) -> None:
    new_capture(tmp_path / "c").finish()
    line = load_timeline(Capture.open(str(tmp_path / "c")), on_demand=True)
    assert len(line) == 0
    assert line.table(["slot"]).num_rows == 0


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
    assert all(" B" not in evidence and "GiB" not in evidence for evidence in found.values())


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
