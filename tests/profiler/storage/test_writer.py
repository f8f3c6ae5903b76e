"""Captures on disk: what is recorded comes back, and no crash, full disk or second run loses a completed pass."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from executor.errors import HprofError
from executor.passes import OrderingRecord
from profiler.capture import Capture
from profiler.manifest import Manifest
from profiler.schema import TABLES
from profiler.storage.writer import CaptureWriter, PassKey, conform, new_capture
from tests.profiler import makers
from tests.support import ROOT


def test_a_recorded_pass_comes_back_whole(tmp_path: Path) -> None:
    capture = makers.dense_off_on(tmp_path / "c", n_pairs=1)
    passes = capture.table("passes").to_pylist()
    assert [row["arm"] for row in passes] == ["off", "on", "off", "on"]
    assert [row["warmup"] for row in passes] == [True, True, False, False]
    assert passes[2]["tokens"] == makers.TOKENS
    assert passes[2]["t_start"] == 2 * 10_000_000, "each pass has its own zero on the capture's clock"
    events = capture.table("events", pass_ids=[2]).to_pylist()
    assert len(events) == 12
    first = {name: events[0][name] for name in ("kind", "tensor", "layer", "bytes", "t_start", "t_end", "slot")}
    assert first == {
        "kind": "h2d",
        "tensor": "ffn",
        "layer": 0,
        "bytes": 8000,
        "t_start": 20_000_000,
        "t_end": 20_100_000,
        "slot": None,
    }


def test_every_table_has_the_schema_even_when_empty(tmp_path: Path) -> None:
    capture = makers.dense_off_on(tmp_path / "c", n_pairs=1)
    for name, schema in TABLES.items():
        assert capture.table(name).schema == schema
    assert capture.table("ordering").num_rows == 0


def test_ordering_ranges_become_structs(tmp_path: Path) -> None:
    writer = new_capture(tmp_path / "c")
    result = makers.dense_result()
    result.ordering.append(
        OrderingRecord(1, "copy", "copy", 5, reads=[("host", 0, 8, "w")], writes=[("slot0", 0, 8, "w")])
    )
    writer.plan_pass(0, PassKey("off"))
    writer.record_pass(0, result)
    row = Capture.open(tmp_path / "c").table("ordering").to_pylist()[0]
    assert row["reads"] == [{"space": "host", "from": 0, "to": 8, "tag": "w"}]
    assert row["writes"][0]["space"] == "slot0"


def test_conform_casts_and_fills(tmp_path: Path) -> None:
    table = conform("events", {"kind": ["h2d", None], "t_start": np.array([1, 2], np.int32), "bytes": [None, 5]})
    assert table.schema == TABLES["events"]
    assert table["kind"].to_pylist() == ["h2d", None]
    assert table["device"].null_count == 2
    plain = conform("events", pa.table({"kind": pa.array(["h2d"]), "t_start": pa.array([3])}))
    assert plain.schema == TABLES["events"]
    with pytest.raises(ValueError, match="no column"):
        conform("events", {"colour": [1]})


def test_an_existing_capture_is_kept_unless_forced(tmp_path: Path) -> None:
    makers.dense_off_on(tmp_path / "c", n_pairs=2)
    with pytest.raises(HprofError, match="--force"):
        new_capture(tmp_path / "c")
    assert len(Capture.open(tmp_path / "c").passes) == 6
    new_capture(tmp_path / "c", force=True).finish()
    replaced = Capture.open(tmp_path / "c")
    assert len(replaced.passes) == 0
    assert replaced.table("events").num_rows == 0


def test_a_run_that_another_replaced_writes_no_more(tmp_path: Path) -> None:
    """Its passes would mix with the other's, which have the same numbers."""
    first = new_capture(tmp_path / "c")
    first.plan_pass(0, PassKey("off"))
    second = new_capture(tmp_path / "c", force=True)
    second.add_pass_row(0, PassKey("on"), ttft_ns=7)
    writes: list[Callable[[], None]] = [
        lambda: first.record_pass(0, makers.dense_result()),
        lambda: first.add_pass_row(1, PassKey("off")),
        lambda: first.update_manifest(warnings=["mine"]),
        lambda: first.finish("interrupted"),
        first.finish,
    ]
    for write in writes:
        with pytest.raises(HprofError, match="was replaced by another run"):
            write()
    second.finish()
    capture = Capture.open(tmp_path / "c")
    assert capture.passes["arm"].tolist() == ["on"]
    assert capture.table("events").num_rows == 0
    assert (capture.manifest.state, capture.manifest.warnings) == ("complete", [])


@pytest.mark.parametrize("force", [False, True])
def test_other_peoples_folders_are_left_alone(tmp_path: Path, force: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(HprofError, match="holds other files"):
        new_capture(tmp_path, force=force)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("text", ['{"name": "my app", "schema": 1}', "{", "[]"])
def test_another_programs_manifest_is_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "mine.parquet").write_text("years of work")
    with pytest.raises(HprofError, match="holds other files"):
        new_capture(tmp_path, force=True)
    assert (tmp_path / "manifest.json").read_text() == text
    assert (tmp_path / "events" / "mine.parquet").exists()


def test_a_file_in_the_captures_place(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("mine")
    with pytest.raises(HprofError, match="is a file, where a capture needs a folder"):
        new_capture(tmp_path / "c", force=True)


def test_what_a_killed_process_left_is_no_stranger(tmp_path: Path) -> None:
    (tmp_path / ".manifest.json.123.tmp").write_text("{")
    new_capture(tmp_path).finish()
    assert Capture.open(tmp_path).manifest.state == "complete"


def test_of_two_captures_begun_at_once_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_capture(tmp_path / "c", argv=["first"])
    monkeypatch.setattr("profiler.storage.writer.claim", lambda *_args, **_options: True)  # an instant before
    with pytest.raises(HprofError, match="File exists"):
        new_capture(tmp_path / "c", argv=["second"])
    assert Capture.open(tmp_path / "c").manifest.argv == ["first"]
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["manifest.json"]


def test_force_leaves_files_that_are_not_the_captures(tmp_path: Path) -> None:
    makers.dense_off_on(tmp_path / "c", n_pairs=1)
    (tmp_path / "c" / "notes.md").write_text("mine")
    new_capture(tmp_path / "c", force=True)
    assert (tmp_path / "c" / "notes.md").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(HprofError, match="cannot write"):
        new_capture(tmp_path / "c")


def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("a file")
    with pytest.raises(HprofError, match="cannot write"):
        new_capture(tmp_path / "c" / "below")


def test_a_full_disk_loses_the_pass_under_way_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = new_capture(tmp_path / "c")
    for pass_id in range(2):
        writer.plan_pass(pass_id, PassKey("off"))
        if pass_id == 1:
            monkeypatch.setattr(os, "fsync", _no_space_left)
            with pytest.raises(HprofError, match=r"No space left on device; free space"):
                writer.record_pass(pass_id, makers.dense_result())
            monkeypatch.undo()
        else:
            writer.record_pass(pass_id, makers.dense_result())
    assert len(Capture.open(tmp_path / "c").passes) == 1
    assert not list((tmp_path / "c").rglob("*.tmp"))


def test_a_second_process_adds_parts(tmp_path: Path) -> None:
    new_capture(tmp_path / "c", model={"name": "m"})
    worker = CaptureWriter.attach(tmp_path / "c", prefix="worker-1-")
    worker.plan_pass(7, PassKey("on"))
    worker.record_pass(7, makers.dense_result())
    worker.finish()
    capture = Capture.open(tmp_path / "c")
    assert capture.manifest == capture.manifest.with_changes(model={"name": "m"}, state="complete")
    assert capture.passes["pass_id"].tolist() == [7]
    assert capture.table("events").num_rows == 12


def test_remote_captures_are_written_and_read_alike(tmp_path: Path) -> None:
    local = makers.dense_off_on(tmp_path / "c", n_pairs=1)
    writer = CaptureWriter("memory://bucket/run", Manifest(), force=True)
    for name in ("events", "ubatches", "passes"):
        writer.write_part(name, local.table(name), "all")
    writer.finish()
    remote = Capture.open("memory://bucket/run")
    assert remote.path == "memory://bucket/run"
    assert remote.table("events").equals(local.table("events"))


def test_sigkill_at_any_instant_keeps_every_completed_pass(tmp_path: Path) -> None:
    """The child says after each pass that it is done; a reader must then find that pass, and only whole ones."""
    child = (
        "import sys; from pathlib import Path; from tests.profiler import makers; "
        "from profiler.storage.writer import PassKey, new_capture\n"
        "writer = new_capture(sys.argv[1])\n"
        "for n in range(10**6):\n"
        "    writer.plan_pass(n, PassKey('off')); writer.record_pass(n, makers.dense_result()); print(n, flush=True)\n"
    )
    for attempt, delay_s in enumerate((0.0, 0.003, 0.017)):
        path = tmp_path / str(attempt)
        command = [sys.executable, "-c", child, str(path)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        n_told = 1 + len(process.stdout.read().splitlines())
        process.wait()
        capture = Capture.open(path)
        assert n_told <= len(capture.passes) <= n_told + 1
        assert capture.table("events").num_rows == 12 * len(capture.passes)
        assert "still running, or was killed" in capture.warnings[0]


def _no_space_left(handle: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
