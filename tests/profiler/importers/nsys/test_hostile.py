"""Damaged and hostile exports: one clear error or an honest import, rows that go are counted, nothing runs."""

from __future__ import annotations

import re
import sqlite3
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor.errors import HprofError
from profiler.arithmetic.intervals import MAX_ABS_NS
from profiler.importers import read_file
from profiler.importers.base import Imported
from profiler.importers.nsys.sqlite import SqliteTables
from tests.profiler.importers.nsys.exports import (
    KERNEL,
    MEMCPY,
    RUNTIME,
    Row,
    Tables,
    call,
    copy,
    device_row,
    events,
    imported,
    kernel,
    nvtx,
    write_export,
)
from tests.support import shared_path

_HUGE = 10**18


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (kernel(None, 5), "kernel: no times"),
        (kernel(5, None), "kernel: no times"),
        (kernel(0, 0), "kernel: no times"),
        (kernel(9, 5), "kernel: end before start"),
        (kernel(5, _HUGE), "kernel: longer than a day"),
        (kernel(-(2**63) + 1, 2**63 - 1), "kernel: longer than a day"),
        (kernel(_HUGE, _HUGE + 1), "row: more than 30 days from the others"),
        (kernel(1, 2, deviceId=-1), "kernel: no such device number"),
        (kernel(1, 2, deviceId=None), "kernel: no such device number"),
        (kernel(1, 2, deviceId=10**9), "kernel: no such device number"),
    ],
)
def test_impossible_kernels_are_dropped_and_counted(tmp_path: Path, bad: Row, reason: str) -> None:
    good = [kernel(100, 200), kernel(300, 350), kernel(360, 400)]
    found = imported(tmp_path, {KERNEL: [*good, bad]})
    assert dict(found.dropped) == {reason: 1}
    assert [row["t_end"] - row["t_start"] for row in events(found, "t_start", "t_end")] == [100, 50, 40]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (copy(1, 2, copyKind=0), "copy: unknown copy kind"),
        (copy(1, 2, copyKind=99), "copy: unknown copy kind"),
        (copy(1, 2, copyKind=None), "copy: unknown copy kind"),
        (copy(1, 2, copyKind=9), "copy: from host to host"),
        (copy(1, 2, bytes=-5), "copy: negative size"),
    ],
)
def test_copies_that_cannot_be_told_are_dropped_and_counted(tmp_path: Path, bad: Row, reason: str) -> None:
    found = imported(tmp_path, {MEMCPY: [copy(100, 200), bad]})
    assert dict(found.dropped) == {reason: 1}
    assert found.tables["events"].num_rows == 1


def test_a_copy_without_a_size_stays_and_its_size_is_null(tmp_path: Path) -> None:
    assert events(imported(tmp_path, {MEMCPY: [copy(1, 2, bytes=None)]}), "bytes") == [{"bytes": None}]


def test_text_floats_and_blobs_where_numbers_belong(tmp_path: Path) -> None:
    rows = [
        kernel(100, 200),
        kernel(300, 400) | {"start": "soon"},
        kernel(500, 600) | {"end": 550.5},
        kernel(700, 800) | {"start": b"\x00\xff"},
        kernel(900, 1000) | {"streamId": "seven", "shortName": "x", "demangledName": 2.5},
        kernel(1100, 1200) | {"correlationId": "1,2"},
    ]
    types = dict.fromkeys(rows[0], "")
    found = read_file(write_export(tmp_path / "x.sqlite", {KERNEL: rows}, types))
    assert dict(found.dropped) == {"kernel: no times": 3}
    assert [(row["t_start"], row["stream"]) for row in events(found, "t_start", "stream")] == [
        (0, "7"),
        (800, None),
        (1000, "7"),
    ]


def test_repeated_ids_mean_their_first_row(tmp_path: Path) -> None:
    strings: list[Row] = [{"id": 1, "value": "first"}, {"id": 1, "value": "second"}, {"id": None, "value": "none"}]
    tables: Tables = {
        "StringIds": strings,
        KERNEL: [kernel(10, 20, 5)],
        RUNTIME: [call(1, 2, 5, nameId=1), call(3, 4, 5)],
    }
    assert [row["name"] for row in events(imported(tmp_path, tables), "name")] == ["first", None, "first"]


def test_names_are_data(tmp_path: Path) -> None:
    text = "<script>alert(1)</script> [red]x[/red] \x00\x1b[31m ' \" ; DROP TABLE"
    strings = [{"id": 1, "value": text}, {"id": 2, "value": "x" * 100_000}]
    found = imported(tmp_path, {"StringIds": strings, KERNEL: [kernel(1, 2), kernel(3, 4, demangledName=2)]})
    names = [row["name"] for row in events(found, "name")]
    assert names[0].startswith("<script>alert(1)</script> [red]x[/red] ")
    assert names[1] == "x" * 1024


def test_invalid_utf8_is_replaced(tmp_path: Path) -> None:
    path = write_export(tmp_path / "x.sqlite", {KERNEL: [kernel(1, 2)]})
    with sqlite3.connect(path) as database:
        database.execute("UPDATE StringIds SET value = CAST(x'61ff62' AS TEXT) WHERE id = 1")
    assert events(read_file(path), "name") == [{"name": "a\ufffdb"}]


def test_views_triggers_and_virtual_tables_are_not_touched(tmp_path: Path) -> None:
    path = write_export(tmp_path / "x.sqlite", {MEMCPY: [copy(1, 2)]})
    with sqlite3.connect(path) as database:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i AS end FROM n"
        database.execute(f"CREATE VIEW {KERNEL} AS {endless}")
        database.execute(f"CREATE TRIGGER {RUNTIME} AFTER INSERT ON {MEMCPY} BEGIN DELETE FROM {MEMCPY}; END")
    found = read_file(path)
    assert [row["kind"] for row in events(found, "kind")] == ["h2d"]
    assert any(f"{KERNEL} is a view" in warning for warning in found.warnings)


def test_tables_without_row_ids_and_with_a_column_called_rowid(tmp_path: Path) -> None:
    path = write_export(tmp_path / "x.sqlite", {MEMCPY: [copy(1, 2) | {"rowid": 7}, copy(3, 4) | {"rowid": 7}]})
    with sqlite3.connect(path) as database:
        names = ", ".join(f'"{name}"' for name in kernel(1, 2))
        database.execute(f'CREATE TABLE {KERNEL} ({names}, PRIMARY KEY ("start")) WITHOUT ROWID')
        marks = ", ".join("?" * len(kernel(1, 2)))
        database.execute(f"INSERT INTO {KERNEL} VALUES ({marks})", list(kernel(5, 9).values()))
    assert [row["kind"] for row in events(read_file(path), "kind")] == ["h2d", "h2d", "compute"]


def test_ranges_that_cross_and_repeat_come_to_an_end(tmp_path: Path) -> None:
    ranges = [nvtx(start, start + 1000, f"layer {start % 7}") for start in range(300)] * 3
    ranges += [nvtx(None, 5, "layer 1"), nvtx(9, 3, "layer 1"), nvtx(0, _HUGE, "layer 1"), nvtx(5, 6, None)]
    tables = {"NVTX_EVENTS": ranges, RUNTIME: [call(350, 352, 1)], KERNEL: [kernel(400, 410, 1)]}
    found = imported(tmp_path, tables)
    assert {row["layer"] for row in events(found, "layer")} == {299 % 7}
    assert found.dropped["NVTX range: no times"] == 1
    assert found.dropped["NVTX range: end before start"] == 1
    assert found.dropped["NVTX range: longer than a day"] == 1


@pytest.mark.parametrize(
    "content", [b"", b"SQLite format 3\x00", b"SQLite format 3\x00" + b"\x00" * 5000, b"PK\x03\x04"]
)
def test_what_is_no_database_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(content)
    with pytest.raises(HprofError, match=r"x\.sqlite"):
        read_file(path, "nsys")


def test_a_database_of_something_else_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE something (x)")
    with pytest.raises(HprofError, match="none of the tables"):
        read_file(path)


def test_an_export_of_nothing_imports_and_says_so(tmp_path: Path) -> None:
    found = imported(tmp_path, {})
    assert found.tables["events"].num_rows == 0
    assert any("no device work" in warning for warning in found.warnings)


@cache
def _small() -> bytes:
    tables = {
        KERNEL: [kernel(i * 100 + 50, i * 100 + 90, i + 1) for i in range(200)],
        MEMCPY: [copy(i * 100, i * 100 + 40, 1000 + i) for i in range(50)],
        RUNTIME: [call(i * 100, i * 100 + 10, i + 1) for i in range(200)],
        "NVTX_EVENTS": [nvtx(i * 100 - 5, i * 100 + 20, f"layer {i}") for i in range(50)],
        "CUPTI_ACTIVITY_KIND_MEMSET": [device_row(5, 6, bytes=1, value=0)],
    }
    with tempfile.TemporaryDirectory() as folder:
        return write_export(Path(folder) / "small.sqlite", tables).read_bytes()


def _read_damaged(path: Path, content: bytes) -> Imported | str:
    """The import, or the text of the one clear error; anything else fails the test."""
    path.write_bytes(content)
    try:
        return read_file(path, "nsys")
    except HprofError as error:
        return str(error)


def _check_sane(found: Imported | str) -> None:
    if isinstance(found, str):
        assert "damaged.sqlite" in found
        assert "\n" not in found
        return
    for row in events(found, "t_start", "t_end", "kind", "bytes"):
        assert 0 <= row["t_start"] <= row["t_end"] < MAX_ABS_NS
        assert row["kind"] is not None
        assert row["bytes"] is None or row["bytes"] >= 0


_FUZZ = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@_FUZZ
@given(st.data())
def test_flipped_bytes(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(_small())
    places = st.integers(0, len(content) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=30)):
        content[place] ^= data.draw(st.integers(1, 255))
    _check_sane(_read_damaged(tmp_path / "damaged.sqlite", bytes(content)))


@_FUZZ
@given(st.data())
def test_truncation(tmp_path: Path, data: st.DataObject) -> None:
    content = _small()
    length = data.draw(st.integers(0, len(content) - 1))
    found = _read_damaged(tmp_path / "short.sqlite", content[:length])
    assert isinstance(found, str)
    assert "short.sqlite" in found


@settings(_FUZZ, max_examples=20)
@given(st.data())
def test_flipped_bits_of_a_real_export(tmp_path: Path, data: st.DataObject) -> None:
    real = shared_path("data", "nsys", "3.24.14_2026.1.1_MULTISTREAM_async_report1.sqlite")
    content = bytearray(real.read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=200)):
        content[place] ^= 1 << data.draw(st.integers(0, 7))
    _check_sane(_read_damaged(tmp_path / "damaged.sqlite", bytes(content)))


_CELL = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-5, 2000),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.binary(max_size=8),
)


@settings(_FUZZ, max_examples=40)
@given(
    st.lists(st.fixed_dictionaries(dict.fromkeys(copy(1, 2), _CELL)), min_size=1, max_size=8),
    st.lists(st.fixed_dictionaries(dict.fromkeys(call(1, 2), _CELL)), min_size=1, max_size=8),
    st.lists(st.fixed_dictionaries(dict.fromkeys(nvtx(1, 2, "x"), _CELL)), min_size=1, max_size=8),
)
def test_any_values_in_any_cell(tmp_path: Path, copies: list[Row], calls: list[Row], ranges: list[Row]) -> None:
    tables = {MEMCPY: [*copies, copy(10, 20, 3)], RUNTIME: [*calls, call(1, 2, 3)], "NVTX_EVENTS": ranges}
    types = dict.fromkeys({*copies[0], *calls[0], *ranges[0]}, "")
    path = write_export(tmp_path / "any.sqlite", tables, types)
    found = read_file(path)
    _check_sane(found)
    kept = found.tables["events"].num_rows
    lost = sum(count for reason, count in found.dropped.items() if not reason.startswith("NVTX"))
    assert kept + lost == len(copies) + len(calls) + 2


def test_row_ids_that_are_damaged_hide_no_rows(tmp_path: Path) -> None:
    # More rows than one query takes; the last row of the first chunk claims an id beyond all others.
    path = tmp_path / "x.sqlite"
    rows = [copy(i * 10, i * 10 + 5) for i in range(70_000)]
    write_export(path, {MEMCPY: rows})
    content = path.read_bytes()
    # A row's cell in the b-tree: its length, its row id (a varint of three bytes up to 2^21), its header's length.
    damaged = re.sub(re.escape(_varint(65_536)) + b"(?=[\x0a-\x13])", _varint(2_000_000), content)
    assert damaged != content
    path.write_bytes(damaged)
    by_chunks = SqliteTables(path)._joined(MEMCPY, ["start"])
    assert by_chunks is not None
    assert len(by_chunks[0]) < len(rows)
    assert read_file(path).tables["events"].num_rows == len(rows)


def _varint(number: int) -> bytes:
    return bytes([0x80 | number >> 14, 0x80 | (number >> 7 & 0x7F), number & 0x7F])
