"""Reads the CSV itself: finds the header, names columns without their units, and parses numbers exactly."""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from executor.errors import HprofError
from profiler.importers.detect import read_head
from profiler.importers.nsys.tables import MAX_TEXT_CHARS, NULL, Int64

_HEADER: Final = re.compile(rb"^\"?Start \(", re.MULTILINE)
_COLUMN: Final = re.compile(r"(?P<name>[^(]+?)\s*(?:\((?P<unit>[^)]*)\))?")
_UNITS: Final = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "nsec": 1,
    "usec": 10**3,
    "msec": 10**6,
    "sec": 10**9,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}
_NUMBER: Final = r"^(?P<whole>[0-9]{1,18})(?:\.(?P<fraction>[0-9]{0,9}))?$"
_BILLION: Final = 10**9
_MAX_BYTES: Final = 4 << 30


@dataclass(frozen=True, slots=True)
class Columns:
    """Text columns by their names without units; `scale` gives a unit's size in ns or bytes."""

    texts: dict[str, pa.ChunkedArray]
    units: dict[str, str]
    n_rows: int
    path: Path
    is_cut: bool  # nsys ends every line

    def text(self, name: str) -> pa.ChunkedArray:
        """A column, null throughout where the file lacks it, cut to MAX_TEXT_CHARS."""
        column = self.texts.get(name)
        if column is None:
            return pa.chunked_array([pa.nulls(self.n_rows, pa.string())])
        return pc.utf8_slice_codeunits(column, 0, MAX_TEXT_CHARS)

    def scale(self, name: str) -> int:
        """ns or bytes in one unit of the column; raises HprofError for a unit that nsys does not have."""
        unit = self.units.get(name) or "B"
        if unit not in _UNITS:
            raise HprofError(
                f"{self.path} has its column '{name}' in '{unit[:20]}', a unit that hprof does not know; write it "
                "again with `nsys stats --timeunit ns`."
            )
        return _UNITS[unit]

    def numbers(self, name: str, scale: int = 1) -> Int64:
        """A column times `scale`, exact, rounded down below 1; NULL where a cell is no plain number."""
        parts = pc.extract_regex(self.text(name), pattern=_NUMBER)
        if isinstance(parts, pa.ChunkedArray):
            parts = parts.combine_chunks()
        whole = _int64(pc.struct_field(parts, "whole"), 1)
        fraction = _int64(pc.struct_field(parts, "fraction"), 9)
        known = ~parts.is_null().to_numpy(zero_copy_only=False)
        small = known & (whole <= np.iinfo(np.int64).max // max(scale, 1) - 1)
        return np.where(small, whole * scale + fraction * scale // _BILLION, NULL)


def read_columns(path: Path, dropped: Counter[str]) -> Columns:
    """The CSV's columns as texts; rows with a wrong number of cells are counted in `dropped`."""
    start = _HEADER.search(read_head(path))
    if start is None:
        raise HprofError(
            f"{path} has no line that starts with 'Start ('; write it with "
            "`nsys stats --report cuda_gpu_trace --format csv`."
        )

    try:
        data = _utf8(path, start.start())
        header, _, body = data.partition(b"\n")
        columns = _header(header)
        names = [name for name, _ in columns]
        table = (
            _table(body, names, dropped)
            if body.strip()
            else pa.table({name: pa.array([], pa.string()) for name in names})
        )
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0][:200]
        raise HprofError(f"{path} cannot be read as CSV ({reason}); write it again with `nsys stats`.") from error
    texts = dict(zip(names, table.columns, strict=True))
    return Columns(texts, dict(columns), table.num_rows, path, is_cut=not data.endswith(b"\n"))


def _utf8(path: Path, offset: int) -> bytes:
    """The file from `offset` on; bytes that are no UTF-8 are replaced, as arrow would stop at them."""
    if path.stat().st_size > _MAX_BYTES:
        raise HprofError(
            f"{path} is larger than {_MAX_BYTES >> 30} GiB; import the SQLite export, which is read in parts."
        )
    data = path.read_bytes()[offset:]
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace").encode()
    return data


def _table(body: bytes, names: list[str], dropped: Counter[str]) -> pa.Table:
    def skip(_row: pacsv.InvalidRow) -> str:
        dropped["row: wrong number of cells"] += 1
        return "skip"

    return pacsv.read_csv(
        pa.BufferReader(body),
        read_options=pacsv.ReadOptions(column_names=names),
        parse_options=pacsv.ParseOptions(invalid_row_handler=skip),
        convert_options=pacsv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True),
    )


def _header(line: bytes) -> list[tuple[str, str]]:
    """(name, unit) of each column, names made distinct."""
    found: list[tuple[str, str]] = []
    for number, cell in enumerate(next(csv.reader([line.decode("utf-8", "replace")]))):
        parts = _COLUMN.fullmatch(cell.strip())
        name = parts["name"] if parts else cell
        taken = {name for name, _ in found}
        found.append((f"{name} {number}" if name in taken else name, (parts["unit"] or "") if parts else ""))
    return found


def _int64(texts: pa.StringArray, pad: int) -> Int64:
    filled = pc.fill_null(texts, "0")
    values: Int64 = pc.utf8_rpad(filled, pad, "0").cast(pa.int64()).to_numpy()
    return values
