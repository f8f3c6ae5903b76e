"""parquetdir and arrowdir hold the same tables as SQLite and import to the same events."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.errors import HprofError
from profiler.capture import Capture
from profiler.importers import detect, import_files, read_file
from profiler.importers.nsys.folder import FolderTables
from tests.profiler.importers.nsys.exports import KERNEL, MEMCPY, copy, events, kernel, write_export
from tests.support import shared_path


def _tables(path: Path) -> dict[str, pa.Table]:
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as database:
        database.text_factory = lambda raw: raw.decode("utf-8", "replace")
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {}
        for name in names:
            cursor = database.execute(f'SELECT * FROM "{name}"')
            columns = [column[0] for column in cursor.description]
            if rows := cursor.fetchall():
                values = zip(*rows, strict=True)
                found[name] = pa.table({c: list(v) for c, v in zip(columns, values, strict=True)})
    return found


def _write_parquet(folder: Path, tables: dict[str, pa.Table]) -> Path:
    folder.mkdir()
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


def _write_arrow(folder: Path, tables: dict[str, pa.Table], *, stream: bool) -> Path:
    folder.mkdir()
    for name, table in tables.items():
        new = pa.ipc.new_stream if stream else pa.ipc.new_file
        with new(folder / f"{name}.arrow", table.schema) as writer:
            writer.write_table(table)
    return folder


def test_a_real_export_in_all_forms(tmp_path: Path) -> None:
    source = shared_path("data", "nsys", "3.25.0_2026.2.1_WEIGHTSTREAM_h100_2gpu_1s.sqlite")
    tables = _tables(source)
    expected = read_file(source)
    for folder in (
        _write_parquet(tmp_path / "a_pqtdir", tables),
        _write_arrow(tmp_path / "b_arwdir", tables, stream=False),
        _write_arrow(tmp_path / "c", tables, stream=True),
    ):
        assert detect(folder) == "nsys"
        found = read_file(folder)
        assert found.tables["events"].equals(expected.tables["events"])
        assert (found.warnings, found.cannot_say) == (expected.warnings, expected.cannot_say)
        assert found.manifest_fields == expected.manifest_fields


def test_native_column_types(tmp_path: Path) -> None:
    types = {"start": pa.uint64(), "end": pa.int64(), "deviceId": pa.uint8(), "streamId": pa.uint32()}
    rows = pa.Table.from_pylist([kernel(5, 9, 1), kernel(11, 12, 2)])
    for name, kind in types.items():
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, name, rows[name].cast(kind))
    rows = rows.set_column(rows.schema.get_field_index("demangledName"), "demangledName", pa.array(["x", "y"]))
    folder = _write_parquet(tmp_path / "x", {KERNEL: rows})
    found = read_file(folder)
    assert events(found, "t_start", "t_end", "stream", "name") == [
        {"t_start": 0, "t_end": 4, "stream": "7", "name": None},
        {"t_start": 6, "t_end": 7, "stream": "7", "name": None},
    ]
    assert any("lacks META_DATA_EXPORT" in warning for warning in found.warnings)


def test_times_beyond_int64_are_dropped_and_counted(tmp_path: Path) -> None:
    rows = pa.table({"start": pa.array([5, 1 << 63], pa.uint64()), "end": pa.array([9, 1 << 63], pa.uint64())})
    for name in ("deviceId", "contextId", "streamId", "correlationId", "bytes"):
        rows = rows.append_column(name, pa.array([1, 1]))
    rows = rows.append_column("copyKind", pa.array([1, 1]))
    found = read_file(_write_parquet(tmp_path / "x", {MEMCPY: rows}))
    assert dict(found.dropped) == {"copy: no times": 1}


def test_texts_that_are_no_utf8(tmp_path: Path) -> None:
    raw = pa.array([b"a\xffb", b"fine", None], pa.binary()).cast(pa.string(), safe=False)
    tables = {
        "StringIds": pa.table({"id": [1, 2, 3], "value": raw}),
        "META_DATA_EXPORT": pa.table({"name": ["EXPORT_SCHEMA_VERSION"], "value": ["3.25.0"]}),
        KERNEL: pa.Table.from_pylist([kernel(1, 2), kernel(3, 4, demangledName=2), kernel(5, 6, demangledName=3)]),
    }
    for folder in (_write_parquet(tmp_path / "p", tables), _write_arrow(tmp_path / "a", tables, stream=False)):
        assert [row["name"] for row in events(read_file(folder), "name")] == ["a\ufffdb", "fine", None]


def test_a_damaged_file_is_one_clear_error(tmp_path: Path) -> None:
    folder = _write_parquet(tmp_path / "x", {MEMCPY: pa.Table.from_pylist([copy(1, 2)])})
    path = folder / f"{MEMCPY}.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(HprofError, match=rf"{MEMCPY}\.parquet cannot be read"):
        read_file(folder)


def test_a_file_that_claims_more_rows_than_it_can_hold(tmp_path: Path) -> None:
    zeros = np.zeros(5_000_000, np.int64)
    folder = _write_parquet(tmp_path / "x", {MEMCPY: pa.table({"start": zeros, "end": zeros})})
    assert (folder / f"{MEMCPY}.parquet").stat().st_size < 100_000
    with pytest.raises(HprofError, match="5,000,000 rows"):
        read_file(folder)


def test_a_folder_without_tables_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(HprofError, match="parquetdir"):
        read_file(tmp_path)


def test_sqlite_and_folder_agree_on_small_exports(tmp_path: Path) -> None:
    path = write_export(tmp_path / "x.sqlite", {KERNEL: [kernel(5, 9, 1)], MEMCPY: [copy(1, 2, bytes=None)]})
    folder = _write_parquet(tmp_path / "y", _tables(path))
    assert read_file(folder).tables["events"].equals(read_file(path).tables["events"])


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_column_that_comes_twice(tmp_path: Path, form: str) -> None:
    rows = pa.Table.from_pylist([copy(1, 2)])
    twice = {
        MEMCPY: rows.append_column("deviceId", rows["deviceId"]),
        "StringIds": pa.table({"id": [1], "value": ["x"]}),
    }
    folder = tmp_path / form
    _write_parquet(folder, twice) if form == "parquet" else _write_arrow(folder, twice, stream=False)
    with pytest.raises(HprofError, match="two columns have one name"):
        read_file(folder)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.sampled_from(["parquet", "arrow"]))
def test_flipped_bytes(tmp_path: Path, data: st.DataObject, form: str) -> None:
    folder = tmp_path / form
    rows = pa.Table.from_pylist([copy(i, i + 1) for i in range(50)])
    if not folder.exists():
        tables = {MEMCPY: rows, "StringIds": pa.table({"id": [1, 2], "value": ["x", "y"]})}
        _write_parquet(folder, tables) if form == "parquet" else _write_arrow(folder, tables, stream=False)
    files = sorted(folder.glob(f"*.{form}"))
    before = {file: file.read_bytes() for file in files}
    file = data.draw(st.sampled_from(files))
    content = bytearray(before[file])
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=20)):
        content[place] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content)
    try:
        found: str | int = read_file(folder).tables["events"].num_rows
    except HprofError as error:
        found = str(error)
    file.write_bytes(before[file])
    assert found <= len(rows) if isinstance(found, int) else "\n" not in found


def test_links_that_lead_nowhere_and_folders_are_no_tables(tmp_path: Path) -> None:
    tables = _tables(write_export(tmp_path / "x.sqlite", {KERNEL: [kernel(1, 2)]}))
    folder = _write_parquet(tmp_path / "a_pqtdir", tables)
    (folder / f"{MEMCPY}.parquet").symlink_to("nowhere")
    (folder / "NVTX_EVENTS.parquet").mkdir()
    capture = Capture.open(import_files([folder], tmp_path / "out"))
    assert capture.table("events").num_rows == 1
    assert [text for text in capture.warnings if "no file" in text] == [
        f"{MEMCPY}.parquet is no file, and was not read.",
        "NVTX_EVENTS.parquet is no file, and was not read.",
    ]


def test_a_damaged_page_with_a_checksum_is_one_clear_error(tmp_path: Path) -> None:
    tables = _tables(write_export(tmp_path / "x.sqlite", {KERNEL: [kernel(i * 10, i * 10 + 5) for i in range(100)]}))
    folder = _write_parquet(tmp_path / "a_pqtdir", tables)
    file = folder / f"{KERNEL}.parquet"
    options = {"write_page_checksum": True, "use_dictionary": False, "compression": "none"}
    pq.write_table(tables[KERNEL], file, **options)
    data = bytearray(file.read_bytes())
    data[data.index((500).to_bytes(8, "little"))] ^= 1
    file.write_bytes(data)
    with pytest.raises(HprofError, match=f"{KERNEL}.*CRC"):
        read_file(folder)


def test_a_column_that_holds_no_whole_numbers_is_said(tmp_path: Path) -> None:
    tables = _tables(write_export(tmp_path / "x.sqlite", {MEMCPY: [copy(1, 2)]}))
    tables[MEMCPY] = tables[MEMCPY].drop_columns("bytes").append_column("bytes", pa.array([1000.0]))
    found = read_file(_write_parquet(tmp_path / "a_pqtdir", tables))
    assert events(found, "bytes") == [{"bytes": None}]
    assert f"{MEMCPY}.bytes holds double and no whole numbers: it was not read." in found.warnings


def test_a_name_that_is_repeated_without_end_is_not_written_out(tmp_path: Path) -> None:
    """A megabyte in each of 80,000 rows, by a run-length of a few bytes."""
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(80_000, np.int32)), pa.array(["x" * (1 << 20)]))
    file = tmp_path / "NVTX_EVENTS.parquet"
    pq.write_table(pa.table({"start": pa.array(range(80_000)), "text": names}), file, store_schema=False)
    tables = FolderTables(tmp_path)
    assert tables.ints("NVTX_EVENTS", ["start"])["start"][-1] == 79_999
    with pytest.raises(HprofError, match=r"NVTX_EVENTS\.parquet holds texts of 83,886,080,000 bytes in 'text'"):
        tables.texts("NVTX_EVENTS", "text")
    tables.close()


def test_pages_that_unfold_to_more_than_memory_are_refused(tmp_path: Path) -> None:
    zeros = pa.array(np.zeros(1 << 24, np.int64))
    file = tmp_path / "NVTX_EVENTS.parquet"
    columns = {f"c{n}": zeros for n in range(9)}
    pq.write_table(pa.table(columns), file, use_dictionary=False, compression="zstd")
    with pytest.raises(HprofError, match=r"unfolds to more than|more than a real export would"):
        FolderTables(tmp_path).ints("NVTX_EVENTS", list(columns))
