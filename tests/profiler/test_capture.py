"""Opening captures: what they hold, how they ended, and what a hostile one may not do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import hprof
from executor.errors import HprofError
from profiler.capture import Capture, list_captures
from profiler.schema import EVENTS, PASSES
from profiler.storage import decoding, parts
from profiler.storage.writer import new_capture
from tests.profiler import makers
from tests.support import ROOT

PART = "all-000000.parquet"  # a complete capture's rows are gathered into these


@pytest.fixture
def dense(tmp_path: Path) -> Capture:
    return makers.dense_off_on(tmp_path / "dense", n_pairs=2)


def test_columns_filters_and_passes_are_pruned(dense: Capture) -> None:
    table = dense.table("events", ["bytes"], filters=pc.field("kind") == "h2d", pass_ids=[3])
    assert table.column_names == ["bytes"]
    assert table["bytes"].to_pylist() == [8000] * 6
    assert dense.table("events", pass_ids=[99]).num_rows == 0
    assert dense.table("events", pass_ids=[]).schema == EVENTS


def test_labels_are_categoricals_in_frames(dense: Capture) -> None:
    frame = dense.frame("events", ["kind", "t_start"])
    assert str(frame["kind"].dtype) == "category"
    assert frame["t_start"].dtype == "int64"


def test_unknown_tables_and_columns_are_named(dense: Capture) -> None:
    with pytest.raises(HprofError, match="no table 'event'"):
        dense.table("event")
    with pytest.raises(HprofError, match=r"no column \['colour'\]"):
        dense.table("events", ["colour"])


def test_interrupted_captures_show_completed_passes_alone(tmp_path: Path) -> None:
    capture = makers.interrupted(tmp_path / "c", n_pairs=2)
    assert len(capture.passes) == 6
    assert capture.table("events").num_rows == 6 * 12, "the pass under way has events and no row: they do not count"
    assert capture.warnings == ["The capture is still running, or was killed; it holds 6 completed passes."]


def test_imports_need_no_passes(tmp_path: Path) -> None:
    assert makers.imported_without_passes(tmp_path / "c").table("events").num_rows == 6


@pytest.mark.parametrize(("name", "said"), [("missing", "does not exist"), ("folder", "hprof import")])
def test_what_is_no_capture_says_what_to_do(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(HprofError, match=said):
        Capture.open(tmp_path / name)


@pytest.mark.parametrize(
    ("n_captures", "said"), [(1, "captures: c0; open"), (5, "captures: c0, c1, c2 and 2 more; open")]
)
def test_a_folder_of_captures_names_them(tmp_path: Path, n_captures: int, said: str) -> None:
    (tmp_path / "aside").mkdir()
    for number in range(n_captures):
        makers.imported_without_passes(tmp_path / f"c{number}")
    with pytest.raises(HprofError) as error:
        hprof.open(tmp_path)
    assert said in str(error.value)
    assert str(error.value).endswith(f"open one of them, such as {tmp_path / 'c0'}.")
    assert "aside" not in str(error.value)


def test_an_address_that_nobody_can_read() -> None:
    with pytest.raises(HprofError, match="no way to read"):
        Capture.open("gopher://example.com/x")


@pytest.mark.parametrize("keep", [0, 4, 100, -9])
def test_a_cut_part_is_named(dense: Capture, keep: int) -> None:
    part = Path(dense.path) / "events" / PART
    part.write_bytes(part.read_bytes()[:keep])
    with pytest.raises(HprofError, match=r"all-000000\.parquet is not a readable parquet part"):
        dense.table("events")


def test_a_part_with_flipped_bits_never_shows_a_traceback(dense: Capture) -> None:
    part = Path(dense.path) / "events" / PART
    data = part.read_bytes()
    for position in range(0, len(data), max(1, len(data) // 60)):
        part.write_bytes(data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :])
        try:
            dense.table("events")
        except HprofError as error:
            assert PART in str(error)  # noqa: PT017 - most flips go unnoticed by parquet


def test_columns_of_another_type_are_refused(dense: Capture) -> None:
    part = Path(dense.path) / "events" / PART
    pq.write_table(pa.table({"kind": ["h2d"], "t_start": ["soon"]}), part)
    with pytest.raises(HprofError, match=r"all-000000\.parquet .*its column 't_start' is string"):
        dense.table("events")


def test_foreign_columns_are_ignored_and_missing_ones_null(dense: Capture) -> None:
    part = Path(dense.path) / "events" / PART
    n = dense.manifest.rows["events"]
    pq.write_table(pa.table({"kind": ["h2d"] * n, "colour": ["red"] * n}), part)
    table = dense.table("events", pass_ids=None)
    assert table.schema == EVENTS
    assert table["t_start"].null_count == n


def test_a_few_bytes_cannot_claim_a_billion_rows(dense: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Path(dense.path) / "events" / PART
    n_rows = decoding.MAX_ROW_GROUP_ROWS + 1
    pq.write_table(pa.table({"layer": pa.repeat(1, n_rows)}), part, row_group_size=n_rows)
    assert part.stat().st_size < 100_000
    with pytest.raises(HprofError, match=r"row group of 4,194,305 rows"):
        dense.table("events")
    pq.write_table(pa.table({"layer": pa.repeat(1, 21)}), part)
    monkeypatch.setattr(parts, "MAX_TABLE_ROWS", 20)
    with pytest.raises(HprofError, match="more than 20 rows"):
        dense.table("events")


@pytest.mark.parametrize("name", ["events/all-000000.parquet", "manifest.json"])
def test_pipes_are_refused_and_not_waited_for(dense: Capture, tmp_path: Path, name: str) -> None:
    path = Path(dense.path) / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(HprofError, match="is not a regular file"):
        Capture.open(dense.path).table("events")
    assert len(list_captures(tmp_path)) == 1


@pytest.mark.parametrize("what", ["part", "table", "manifest"])
def test_links_out_of_the_capture_are_refused(dense: Capture, tmp_path: Path, what: str) -> None:
    root = Path(dense.path)
    target = {"part": root / "events/all-000000.parquet", "table": root / "events", "manifest": root / "manifest.json"}
    outside = tmp_path / "outside"
    target[what].rename(outside)
    target[what].symlink_to(outside)
    with pytest.raises(HprofError, match="leads out of the capture's folder"):
        Capture.open(root).table("events")


def test_no_path_in_a_manifest_is_followed(dense: Capture, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("do not read")
    manifest = dense.manifest.with_changes(model={"name": str(secret)}, extra={"events": str(secret)})
    (Path(dense.path) / "manifest.json").write_bytes(manifest.to_json())
    secret.chmod(0)
    os.utime(secret, (0, 0))
    capture = hprof.open(dense.path)
    assert capture.report().model == str(secret)
    assert secret.stat().st_atime == 0


def test_passes_that_share_a_number_are_refused(dense: Capture) -> None:
    part = Path(dense.path) / "passes" / "all-000001.parquet"
    pq.write_table(pa.Table.from_pylist([{"pass_id": 3, "arm": "off"}], schema=PASSES), part)
    with pytest.raises(HprofError, match="share a number"):
        hprof.open(dense.path).report()


def test_a_folder_of_captures_is_listed(tmp_path: Path) -> None:
    makers.dense_off_on(tmp_path / "a", n_pairs=1)
    makers.imported_without_passes(tmp_path / "b")
    (tmp_path / "c").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "manifest.json").write_text("{")
    listed = {summary.name: summary for summary in list_captures(tmp_path)}
    assert set(listed) == {"a", "b", "broken"}
    assert (listed["a"].n_passes, listed["a"].arms, listed["a"].model) == (4, ["off", "on"], "tiny")
    assert listed["b"].source == "nsys"
    assert "not valid JSON" in (listed["broken"].problem or "")
    with pytest.raises(HprofError, match="does not exist"):
        list_captures(tmp_path / "nowhere")
    with pytest.raises(HprofError, match="is no folder"):
        list_captures(tmp_path / "a" / "manifest.json")


@pytest.mark.parametrize(("gpu", "told"), [("rtx4090", "rtx4090, device sim"), (None, "device sim"), (7, "device sim")])
def test_an_imagined_machine_is_told_by_its_gpu(tmp_path: Path, gpu: object, told: str) -> None:
    machine = {"device": "sim", "cpu": "the host's", "imagined_gpu": gpu}
    new_capture(tmp_path / "a", machine=machine).finish()
    assert [summary.machine for summary in list_captures(tmp_path)] == [told]


def test_a_capture_is_found_among_thousands_of_folders(tmp_path: Path) -> None:
    makers.dense_off_on(tmp_path / "a", n_pairs=1)
    for number in range(2000):
        (tmp_path / f"{number}").mkdir()
    assert [summary.name for summary in list_captures(tmp_path)] == ["a"]


@pytest.mark.parametrize("created", ["1901-12-13T20:45:52Z", "2106-02-07T06:28:16Z", "-0001-01-01T00:00:00Z", "soon"])
def test_a_clock_that_was_wrong_hides_no_capture(tmp_path: Path, created: str) -> None:
    path = tmp_path / "a"
    makers.dense_off_on(path, n_pairs=1)
    manifest = path / "manifest.json"
    manifest.write_bytes(orjson.dumps(orjson.loads(manifest.read_bytes()) | {"created_utc": created}))
    (summary,) = list_captures(tmp_path)
    assert (summary.created_utc, summary.problem) == (created, None)
    assert hprof.main(["report", str(path)]) == 0
    assert hprof.main(["list", str(tmp_path)]) == 0


@pytest.mark.parametrize("variables", [{"TMPDIR": "/nonexistent"}, {"HOME": "/proc", "XDG_CACHE_HOME": ""}])
def test_a_report_needs_neither_a_home_to_write_to_nor_a_folder_for_temporary_files(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    makers.dense_off_on(tmp_path / "a", n_pairs=1)
    command = [sys.executable, "-P", "-m", "hprof", "report", str(tmp_path / "a")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
