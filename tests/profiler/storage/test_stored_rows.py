"""Rows read by number are those of the whole table, whatever the parts and row groups they lie in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from executor.errors import HprofError
from profiler.capture import Capture
from profiler.metrics.timeline import TIMELINE_COLUMNS, load_timeline
from profiler.storage.store import Store
from profiler.storage.stored_rows import StoredRows
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
    makers.dense_off_on(tmp_path / "c", n_pairs=1)
    for part in (tmp_path / "c" / "events").glob("*.parquet"):
        part.unlink()
    line = load_timeline(Capture.open(str(tmp_path / "c")), on_demand=True)
    assert len(line) == 0
    assert line.table(["slot"]).num_rows == 0
