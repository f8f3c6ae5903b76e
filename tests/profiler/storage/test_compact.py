"""A finished capture's parts are gathered, and a reader finds every pass at any instant of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO

import pyarrow.parquet as pq
import pytest

from executor.errors import HprofError
from profiler.capture import Capture
from profiler.storage import compact
from profiler.storage.store import Store
from profiler.storage.writer import CaptureWriter, PassKey, new_capture
from tests.profiler import makers

N_PASSES = 5


def running(path: Path) -> CaptureWriter:
    writer = new_capture(path)
    for pass_id in range(N_PASSES):
        writer.plan_pass(pass_id, PassKey("off", repetition=pass_id, order=pass_id))
        writer.record_pass(pass_id, makers.dense_result())
    orphan = {"pass_id": [N_PASSES], "kind": ["compute"], "t_start": [0], "t_end": [1]}
    writer.write_part("events", orphan, f"pass-{N_PASSES:06d}")
    return writer


def names(path: Path, table: str) -> list[str]:
    return sorted(part.name for part in (path / table).iterdir())


def whole(path: Path) -> bool:
    capture = Capture.open(path)
    ids = capture.table("events", ["pass_id"])["pass_id"].to_pylist()
    return capture.passes["pass_id"].tolist() == list(range(N_PASSES)) and ids == sorted([*range(N_PASSES)] * 12)


def test_finished_captures_hold_gathered_parts_alone(tmp_path: Path) -> None:
    before = running(tmp_path / "c")
    rows = Capture.open(tmp_path / "c").table("events")
    before.finish()
    assert names(tmp_path / "c", "events") == names(tmp_path / "c", "passes") == ["all-000000.parquet"]
    after = Capture.open(tmp_path / "c")
    assert after.table("events").equals(rows)
    assert after.manifest.gathered
    assert after.warnings == []


def test_large_captures_get_several_parts_of_whole_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "_PART_ROWS", 24)
    monkeypatch.setattr(compact, "_GROUP_ROWS", 12)
    running(tmp_path / "c").finish()
    assert len(names(tmp_path / "c", "events")) == 3
    first = pq.read_metadata(tmp_path / "c" / "events" / "all-000000.parquet")
    assert [first.row_group(group).num_rows for group in range(first.num_row_groups)] == [12, 12]
    assert whole(tmp_path / "c")
    assert Capture.open(tmp_path / "c").table("events", ["pass_id"], pass_ids=[3])["pass_id"].to_pylist() == [3] * 12


@pytest.mark.parametrize("n_writes", range(6))
def test_a_kill_at_any_write_or_removal_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_writes: int
) -> None:
    writer = running(tmp_path / "c")
    for method in ("write", "remove"):
        monkeypatch.setattr(Store, method, stops_after(n_writes, getattr(Store, method)))
    with pytest.raises(KeyboardInterrupt):
        writer.finish()
    assert whole(tmp_path / "c")


def stops_after(n_calls: int, method: Callable[..., None]) -> Callable[..., None]:
    calls = iter(range(n_calls))

    def stopping(*arguments: object) -> None:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        method(*arguments)

    return stopping


def test_a_full_disk_leaves_the_parts_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = running(tmp_path / "c")

    def full(store: Store, _mark: str) -> None:
        store.write("events/all-000000.parquet", b"half")
        raise HprofError("no space left.")

    monkeypatch.setattr(compact, "gather", full)
    writer.finish()
    capture = Capture.open(tmp_path / "c")
    assert capture.manifest.state == "complete"
    assert "could not be gathered" in capture.warnings[0]
    assert "all-000000.parquet" not in names(tmp_path / "c", "events")
    assert whole(tmp_path / "c")


def test_interrupted_captures_and_imports_stay_as_they_are(tmp_path: Path) -> None:
    running(tmp_path / "c").finish("interrupted")
    assert len(names(tmp_path / "c", "passes")) == N_PASSES
    assert whole(tmp_path / "c")
    makers.imported_without_passes(tmp_path / "d")
    assert names(tmp_path / "d", "events") == ["trace.parquet"]


def test_nothing_is_added_to_a_complete_capture(tmp_path: Path) -> None:
    running(tmp_path / "c").finish()
    with pytest.raises(HprofError, match="is complete"):
        CaptureWriter.attach(tmp_path / "c", prefix="late-")


def test_a_capture_that_was_opened_before_its_parts_were_gathered_reads_whole(tmp_path: Path) -> None:
    writer = running(tmp_path / "c")
    unread, read = (Capture.open(tmp_path / "c") for _ in range(2))
    assert len(read.passes) == N_PASSES
    assert "still running" in read.warnings[0]
    writer.finish()
    for capture in (unread, read):
        assert len(capture.frame("events")) == 12 * N_PASSES
        assert len(capture.rows("events")) == 12 * N_PASSES
        assert capture.n_rows("passes") == N_PASSES
        assert (capture.manifest.state, capture.warnings) == ("complete", [])


def test_parts_that_are_gathered_between_a_look_and_a_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = running(tmp_path / "c")
    capture = Capture.open(tmp_path / "c")
    opened = Store.open

    def opens_later(store: Store, name: str) -> IO[bytes]:
        monkeypatch.setattr(Store, "open", opened)
        writer.finish()
        return opened(store, name)

    monkeypatch.setattr(Store, "open", opens_later)
    assert len(capture.frame("events")) == 12 * N_PASSES


def test_a_capture_that_grew_since_it_was_looked_at_says_so(tmp_path: Path) -> None:
    writer = running(tmp_path / "c")
    capture = Capture.open(tmp_path / "c")
    assert len(capture.passes) == N_PASSES
    writer.plan_pass(N_PASSES, PassKey("off", repetition=N_PASSES, order=N_PASSES))
    writer.record_pass(N_PASSES, makers.dense_result())
    assert len(capture.frame("events")) == 12 * N_PASSES, "all tables are read for the same passes"
    writer.finish()
    with pytest.raises(HprofError, match="has grown since it was opened, and is complete now; open it again"):
        capture.frame("events")


def test_a_capture_that_another_replaced_says_so(tmp_path: Path) -> None:
    running(tmp_path / "c").finish()
    capture = Capture.open(tmp_path / "c")
    makers.dense_off_on(tmp_path / "c", n_pairs=1, force=True)
    with pytest.raises(HprofError, match="was replaced by another capture while it was read; open it again"):
        capture.frame("events")
    (tmp_path / "c" / "manifest.json").unlink()
    with pytest.raises(HprofError, match="was removed while it was read"):
        capture.frame("events")


@pytest.mark.parametrize("table", ["events", "passes"])
def test_rows_that_are_promised_and_missing_are_told(tmp_path: Path, table: str) -> None:
    running(tmp_path / "c").finish()
    imported = makers.imported_without_passes(tmp_path / "d")
    next((tmp_path / "c" / table).iterdir()).unlink()
    with pytest.raises(HprofError, match=rf"{table} holds 0 rows and the capture's manifest promises"):
        Capture.open(tmp_path / "c").frame(table)
    with pytest.raises(HprofError, match="promises"):
        Capture.open(tmp_path / "c").n_rows(table)
    next((tmp_path / "d" / "events").iterdir()).unlink()
    with pytest.raises(HprofError, match="promises 6"):
        imported.rows("events")
