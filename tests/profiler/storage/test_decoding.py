"""What a part may cost: a small file cannot take the machine's memory, whatever its footer says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from executor.errors import HprofError
from profiler.capture import Capture
from profiler.metrics.timeline import load_timeline
from profiler.storage import decoding
from profiler.storage.pages import unfolded_bytes
from tests.profiler import makers
from tests.support import ROOT

MIB = 1 << 20


def repeated_label(path: Path) -> None:
    """One kernel's name of a megabyte, 80,000 times by a run-length: 80 GB."""
    labels = pa.DictionaryArray.from_arrays(pa.array(np.zeros(80_000, np.int32)), pa.array(["x" * MIB]))
    pq.write_table(pa.table({"name": labels}), path, store_schema=False)


def repeated_text(path: Path) -> None:
    """The same in a column that is no label."""
    labels = pa.DictionaryArray.from_arrays(pa.array(np.zeros(80_000, np.int32)), pa.array(["x" * MIB]))
    pq.write_table(pa.table({"arm": labels}), path, store_schema=False)


def text_for_a_number(path: Path) -> None:
    labels = pa.DictionaryArray.from_arrays(pa.array(np.zeros(80_000, np.int32)), pa.array(["1" * MIB]))
    pq.write_table(pa.table({"t_start": labels}), path, store_schema=False)


def pages_of_zeros(path: Path) -> None:
    """Pages that pack well, behind a footer that was made to say that they do not."""
    zeros = pa.array(np.zeros(160 * MIB // 8, np.int64))
    options = {"use_dictionary": False, "compression": "zstd", "data_page_size": 64 * MIB, "row_group_size": 1 << 25}
    pq.write_table(pa.table({"t_start": zeros}), path, **options)


def many_rows(path: Path) -> None:
    """Few bytes for so many rows that the columns which the file lacks would take gigabytes."""
    pq.write_table(pa.table({"layer": pa.array(np.zeros(20_000_000, np.int32))}), path, row_group_size=4_000_000)


BOMBS = [
    (repeated_label, "events", "a text of 1,048,576 bytes in 'name'"),
    (repeated_text, "passes", "takes 83,886,080,000 bytes of memory"),
    (text_for_a_number, "events", "its column 't_start' is "),
    (many_rows, "events", "bytes of memory"),
]


@pytest.mark.parametrize(("write", "table", "said"), BOMBS)
@pytest.mark.parametrize("words", [["report", "{c}"], ["export", "{c}", "--format", "csv", "-o", "{c}-csv"]])
def test_no_command_pays_for_a_bomb(
    tmp_path: Path, write: Callable[[Path], None], table: str, said: str, words: list[str]
) -> None:
    path = tmp_path / "c"
    makers.dense_off_on(path, n_pairs=1)
    part = path / table / "all-000000.parquet"
    write(part)
    assert part.stat().st_size < 9_000_000
    code = (
        "import resource, sys; import hprof; code = hprof.main(sys.argv[1:])\n"
        "print('RSS', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(code)\n"
    )
    command = [sys.executable, "-c", code, *(word.replace("{c}", str(path)) for word in words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert int(done.stdout.split("RSS")[1]) < 3_000_000, "kB"


def test_pages_are_added_up_before_they_are_unfolded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c"
    makers.dense_off_on(path, n_pairs=1)
    part = path / "events" / "all-000000.parquet"
    pages_of_zeros(part)
    assert part.stat().st_size < 200_000
    group = pq.read_metadata(part).row_group(0)
    assert unfolded_bytes(pa.OSFile(str(part)), group, ["t_start"], 1 << 40) == pytest.approx(160 * MIB, rel=0.001)
    assert unfolded_bytes(pa.OSFile(str(part)), group, ["layer"], 1 << 40) == 0
    monkeypatch.setattr(decoding, "_check_size", lambda *_: None)  # as if the footer said little
    monkeypatch.setattr(decoding, "MAX_ROW_GROUP_BYTES", 100 * MIB)
    monkeypatch.setattr(decoding, "MAX_TABLE_BYTES", 1 << 40)
    with pytest.raises(HprofError, match="pages unfold to more than 104,857,600 bytes"):
        Capture.open(path).table("events", ["t_start"])


@pytest.mark.parametrize("kind", ["plain", "dictionary", "nested", "long statistics", "nulls"])
@pytest.mark.parametrize("compression", ["none", "zstd", "snappy"])
def test_no_page_of_an_ordinary_file_is_missed(tmp_path: Path, kind: str, compression: str) -> None:
    """The pages' sizes and their headers are what the footer of an honest file says."""
    columns: dict[str, Any] = {
        "plain": pa.array(np.random.default_rng(1).integers(0, 1 << 50, 300_000)),
        "dictionary": pa.array(["a", "b", None] * 100_000),
        "nested": pa.array([[{"space": "host", "from": 1}], [], None] * 20_000),
        "long statistics": pa.array([chr(97 + n % 26) * 5000 for n in range(300)]),
        "nulls": pa.nulls(100_000, pa.int32()),
    }
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"c": columns[kind]}), path, compression=compression, row_group_size=100_000)
    metadata = pq.read_metadata(path)
    with pa.OSFile(str(path)) as source:
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            found = unfolded_bytes(source, group, ["c"], 1 << 40)
            headers = group.total_byte_size - found
            assert 0 <= headers <= 300 + 0.02 * group.total_byte_size + (25_000 if kind == "long statistics" else 0)


def test_what_is_no_page_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "c"
    capture = makers.dense_off_on(path, n_pairs=1)
    part = path / "events" / "all-000000.parquet"
    data = part.read_bytes()
    endless = [bytes([0x19, 0xF0 + kind]) + b"\xff" * 8 + b"\x0f" for kind in (1, 3, 7, 12)]  # lists of 2^60 items
    for garbage in (b"\xff" * 64, b"\x00" * 64, b"\x19\xfc\xff\xff\xff\x7f" * 11, *endless):
        part.write_bytes(data[:4] + garbage + data[4 + len(garbage) :])
        with pytest.raises(HprofError, match=r"all-000000\.parquet is not a readable parquet part"):
            capture.table("events")


def _two_columns(ids: pa.Array) -> pa.Table:
    return pa.table([ids, ids], ["pass_id", "pass_id"])


PASS_IDS = [
    (lambda n: _two_columns(pa.array([0] * n)), "it has two columns 'pass_id'"),
    (lambda n: pa.table({"pass_id": ["0" * 1000] * n}), "its column 'pass_id' is string"),
    (lambda n: pa.table({"pass_id": [{"a": 1}] * n}), "its column 'pass_id' is struct"),
]


@pytest.mark.parametrize(("made", "said"), PASS_IDS)
@pytest.mark.parametrize("pass_ids", [None, [0]])
def test_ids_of_passes_are_checked_before_rows_are_chosen_by_them(
    tmp_path: Path, made: Callable[[int], pa.Table], said: str, pass_ids: list[int] | None
) -> None:
    capture = makers.dense_off_on(tmp_path / "c", n_pairs=1)
    part = tmp_path / "c" / "events" / "all-000000.parquet"
    pq.write_table(made(pq.read_metadata(part).num_rows), part)
    with pytest.raises(HprofError, match=re.escape(said)):
        capture.table("events", pass_ids=pass_ids)
    with pytest.raises(HprofError, match=re.escape(said)):
        load_timeline(capture, [0], by_stream=True)
