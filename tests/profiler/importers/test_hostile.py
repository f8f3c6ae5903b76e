"""Whatever is done to a format's sample, it is read or refused with one clear error; every format is put to it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pytest

from executor.errors import HprofError
from profiler.importers import FORMATS, ImportOptions
from profiler.importers.base import trace_format
from profiler.schema import TABLES

_ROUNDS = 60
_CELL = re.compile(r'"[^"]*"|[^\s,:|\[\]{}"]+')  # a number, a word or a quoted text of CSV, JSON or a table
_VALUES = ["", "x", "-1", "0", "1.5", "1e400", "null", "true", "[]", "{}", str(2**63 - 1), str(-(2**63)), str(2**70)]


def check_read(kind: str, path: Path, content: bytes) -> None:
    """Read it: tables of the schema with sane times, or a sentence that names the file; all else fails."""
    path.write_bytes(content)
    try:
        tables = trace_format(kind).read(path, ImportOptions()).tables
    except HprofError as error:
        if path.name not in str(error):
            pytest.fail(f"no file is named in: {error}")
        return
    assert all(table.schema.equals(TABLES[name]) for name, table in tables.items())
    if "events" in tables:
        events = tables["events"]
        assert events["t_start"].null_count == events["t_end"].null_count == events["kind"].null_count == 0
        assert pc.all(pc.less_equal(events["t_start"], events["t_end"])).as_py() is not False
        assert pc.any(pc.less(events["bytes"], 0)).as_py() is not True


@pytest.mark.parametrize("kind", FORMATS)
def test_flipped_bytes(tmp_path: Path, kind: str) -> None:
    sample, rng = trace_format(kind).sample(), random.Random(1)
    for _ in range(_ROUNDS):
        content = bytearray(sample)
        for place in rng.choices(range(len(sample)), k=rng.randint(1, 8)):
            content[place] ^= rng.randint(1, 255)
        check_read(kind, tmp_path / "damaged.trace", bytes(content))


@pytest.mark.parametrize("kind", FORMATS)
def test_cut_short(tmp_path: Path, kind: str) -> None:
    sample = trace_format(kind).sample()
    for length in {len(sample) * part // _ROUNDS for part in range(_ROUNDS)}:
        check_read(kind, tmp_path / "short.trace", sample[:length])


@pytest.mark.parametrize("kind", FORMATS)
def test_any_type_in_any_cell(tmp_path: Path, kind: str) -> None:
    for content in changed_cells(trace_format(kind).sample()):
        check_read(kind, tmp_path / "cells.trace", content)


def changed_cells(sample: bytes) -> Iterator[bytes]:
    """A text with one cell after the other changed into each of `_VALUES`, bare and quoted; of a binary file nothing
    (nsys/test_hostile.py fills the cells of a database).
    """
    try:
        text = sample.decode()
    except UnicodeDecodeError:
        return
    for cell in _CELL.finditer(text):
        for value in (*_VALUES, *map(json.dumps, _VALUES)):
            yield (text[: cell.start()] + value + text[cell.end() :]).encode()
