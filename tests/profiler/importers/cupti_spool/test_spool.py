"""Spools that are damaged, cut, hostile, or of another version."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.errors import HprofError
from profiler.importers import cupti_spool, read_file
from profiler.importers.cupti_spool import FORMAT, spool
from profiler.importers.cupti_spool.spool import RECORD, RecordType, read_spool, spool_bytes
from profiler.schema import TABLES

CHUNK = 16  # bytes of a chunk's header


def write(folder: Path, content: bytes) -> Path:
    path = folder / "1-0.hspool"
    path.write_bytes(content)
    return path


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    records = np.zeros(3, RECORD)
    records["start"] = 1, 2**40, 2**64 - 1
    found = read_spool(write(tmp_path, spool_bytes(77, records, {1: "a", 2: "b" * 100, 9: "ß"})))
    assert (found.process, found.n_cut_bytes, found.is_ended) == (77, 0, False)
    assert found.texts == {1: "a", 2: "b" * 100, 9: "ß"}
    assert np.array_equal(found.records, records)


def test_records_of_a_type_keep_the_order_of_the_file(tmp_path: Path) -> None:
    records = np.zeros(3_000, RECORD)
    records["type"] = np.tile([RecordType.PEER_COPY, RecordType.KERNEL, RecordType.COPY], 1_000)
    records["start"] = np.arange(3_000)
    found = read_spool(write(tmp_path, spool_bytes(77, records, {})))
    assert found.of_type(RecordType.KERNEL)["start"].tolist() == list(range(1, 3_000, 3))
    copies, numbers = found.numbered(RecordType.COPY, RecordType.PEER_COPY)
    assert copies["start"].tolist() == numbers.tolist() == [i for i in range(3_000) if i % 3 != 1]
    assert len(found.of_type(RecordType.MEMSET, RecordType.GRAPH)) == 0


def test_a_file_that_is_written_again_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, FORMAT.sample())
    parts, n_readings = spool._parts, [0]

    def changing(*given: Any) -> Iterator[Any]:
        n_readings[0] += 1
        for part in parts(*given):
            yield part if n_readings[0] == 1 else np.full(len(part), part[0], RECORD)

    monkeypatch.setattr(spool, "_parts", changing)
    with pytest.raises(HprofError, match="changed while it was read; import it when its program has ended"):
        read_spool(path)
    monkeypatch.setattr(spool, "_parts", parts)
    chunks = spool._chunks
    monkeypatch.setattr(spool, "_chunks", lambda file, size: [*chunks(file, size), spool._Chunk(1, size, 64, 1)])
    with pytest.raises(HprofError, match="changed while it was read"):
        read_spool(path)


def test_spools_that_are_more_than_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, FORMAT.sample())
    (tmp_path / "2-0.hspool").write_bytes(FORMAT.sample().replace(b"gemm", b"copy"))
    size = len(FORMAT.sample())
    monkeypatch.setattr(cupti_spool, "MAX_BYTES", 2 * size)
    read_file(tmp_path)
    monkeypatch.setattr(cupti_spool, "MAX_BYTES", 2 * size - 1)
    with pytest.raises(HprofError, match="of spools, and hprof imports"):
        read_file(tmp_path)


def test_a_torn_chunk_is_left_out_and_said(tmp_path: Path) -> None:
    whole = FORMAT.sample()
    found = read_file(write(tmp_path, whole + whole[-2 * 64 - CHUNK :][:100]))
    assert found.tables["events"].num_rows == 2
    assert "The last 100 bytes of the spools are no whole chunk and were left out." in found.warnings


@pytest.mark.parametrize("seed", range(40))
def test_any_values_in_any_field(tmp_path: Path, seed: int) -> None:
    """Records of random bytes: read, or left out and counted; tables keep to their schema."""
    rng = np.random.default_rng(seed)
    records = np.frombuffer(rng.bytes(64 * 200), RECORD).copy()
    records["type"] = rng.integers(0, 26, 200)
    if seed % 2:  # small numbers meet each other
        for name in ("name", "thread", "extra", "context", "stream", "device", "kind", "correlation", "bytes"):
            records[name] %= 4
        for name in ("start", "end", "id"):
            records[name] %= 100
    found = read_file(write(tmp_path, spool_bytes(int(rng.integers(1, 2**22)), records, {1: "hprof", 2: "layer 1"})))
    for name, table in found.tables.items():
        assert table.schema.equals(TABLES[name])
    events = found.tables["events"].to_pylist()
    assert all(row["t_start"] <= row["t_end"] and (row["bytes"] or 0) >= 0 for row in events)


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (8, b"\x02", "is a spool of format 2, and this hprof reads 1"),
        (12, b"\x48", "is a spool of format 1"),
        (0, b"x", "is no spool of hprof record"),
    ],
)
def test_other_headers(tmp_path: Path, at: int, value: bytes, said: str) -> None:
    content = bytearray(FORMAT.sample())
    content[at : at + 1] = value
    with pytest.raises(HprofError, match=said):
        read_spool(write(tmp_path, bytes(content)))


@pytest.mark.parametrize("number", [0, 2**32 - 1])
def test_ids_of_strings_cost_no_memory(tmp_path: Path, number: int) -> None:
    spool = read_spool(write(tmp_path, spool_bytes(1, np.zeros(1, RECORD), {number: "far"})))
    assert spool.texts == {}


def test_a_huge_chunk_is_not_believed(tmp_path: Path) -> None:
    sample = FORMAT.sample()
    chunk = np.array([0x316B6863, 1, 0xFFFFFFC0, 0x3FFFFFF], "<u4").tobytes()
    assert len(read_spool(write(tmp_path, sample[:64] + chunk + sample[64:])).records) == 0


def test_a_pipe_in_the_folder_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "1-0.hspool")
    with pytest.raises(HprofError, match=r"1-0\.hspool is not a regular file"):
        read_file(tmp_path)


def test_a_process_that_was_killed_as_it_began_costs_the_others_nothing(tmp_path: Path) -> None:
    write(tmp_path, FORMAT.sample())
    (tmp_path / "2-0.hspool").write_bytes(FORMAT.sample()[:63])
    found = read_file(tmp_path)
    assert found.tables["events"].num_rows == 2
    assert "1 process ended when its recording had just begun: nothing is known." in found.warnings
    (tmp_path / "1-0.hspool").write_bytes(b"")
    with pytest.raises(HprofError, match="holds no spool"):
        read_file(tmp_path)


def test_of_more_processes_than_are_read_those_with_most_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupti_spool, "_MAX_PROCESSES", 1)
    write(tmp_path, FORMAT.sample())
    (tmp_path / "0-0.hspool").write_bytes(spool_bytes(9, np.zeros(0, RECORD), {}))
    found = read_file(tmp_path)
    assert [process["process"] for process in found.manifest_fields["extra"]["processes"]] == [400]
    assert any(text.startswith("The spools of 1 process that recorded least") for text in found.warnings)


def test_flipped_bits_in_the_frame(tmp_path: Path) -> None:
    """What follows a chunk that is damaged is left out; never an endless loop, never a crash."""
    rng = random.Random(3)
    sample = FORMAT.sample()
    for _ in range(200):
        content = bytearray(sample)
        content[rng.randrange(64, 64 + CHUNK)] ^= 1 << rng.randrange(8)
        assert len(read_spool(write(tmp_path, bytes(content))).records) in (0, 2)


def test_a_name_that_one_process_lost_is_not_taken_from_another(tmp_path: Path) -> None:
    """Each file counts its strings from 1; one whose last strings were cut off refers to more than it has."""
    records = np.zeros(2, RECORD)
    records["type"], records["start"], records["end"] = RecordType.KERNEL, (1000, 2000), (1500, 2500)
    records["name"], records["stream"], records["context"] = (1, 2), 7, 1
    write(tmp_path, spool_bytes(5, records, {1: "mine"}))
    (tmp_path / "2-0.hspool").write_bytes(spool_bytes(6, records, {1: "theirs", 2: "theirs too"}))
    events = read_file(tmp_path).tables["events"].to_pylist()
    names = {(row["process"], row["t_start"]): row["name"] for row in events}
    assert names == {(5, 0): "mine", (5, 1000): None, (6, 0): "theirs", (6, 1000): "theirs too"}


def test_many_records(tmp_path: Path) -> None:
    n = 300_000
    records = np.zeros(n, RECORD)
    records["type"] = RecordType.KERNEL
    records["name"], records["stream"], records["context"] = 1, 7, 1
    records["start"] = np.arange(n) * 1000
    records["end"] = records["start"] + 500
    found = read_file(write(tmp_path, spool_bytes(5, records, {1: "k"})))
    assert found.tables["events"].num_rows == n
