"""The tables of a capture, and the figures of its passes, as CSV or as one parquet file a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from profiler.capture import Capture
from profiler.export.output import output_file, output_folder, remove_left_over
from profiler.metrics import load_tables, pass_figures
from profiler.schema import TABLES

FIGURES_TABLE: Final = "figures"
_CSV_ROWS: Final = 1 << 17
_OF_PASS: Final = ("arm", "warmup", "n_prompt", "n_gen", "n_ubatch", "n_depth", "repetition", "boot")
# What makes spreadsheets compute a cell: names in a trace are somebody else's (OWASP, "CSV injection").
_FORMULA: Final = r"\A[=+\-@\t\r\n]"


def write_csv(capture: Capture, pass_ids: Collection[int] | None, folder: Path) -> list[Path]:
    """`<table>.csv` for every table that has rows, and figures.csv. Lists and byte strings become JSON and hex.

    Texts that a spreadsheet would take for a formula get an apostrophe in front.
    """
    return _write(capture, pass_ids, folder, ".csv", _write_csv)


def write_parquet(capture: Capture, pass_ids: Collection[int] | None, folder: Path) -> list[Path]:
    """`<table>.parquet` for every table that has rows, and figures.parquet."""
    return _write(
        capture, pass_ids, folder, ".parquet", lambda table, file: pq.write_table(table, file, compression="zstd")
    )


def _write(
    capture: Capture,
    pass_ids: Collection[int] | None,
    folder: Path,
    suffix: str,
    write: Callable[[pa.Table, IO[bytes]], None],
) -> list[Path]:
    written = []
    # none is in place before all are written: tables of two captures would pass for those of one
    with output_folder(folder), ExitStack() as files:
        for name, table in _tables(capture, pass_ids):
            path = folder / (name + suffix)
            file = files.enter_context(output_file(path))
            write(table, file)
            file.flush()
            os.fsync(file.fileno())  # what the disk has no room for is told before any of them is in place
            written.append(path)
    for name in (*TABLES, FIGURES_TABLE):
        path = folder / (name + suffix)
        if path not in written and path.is_file():
            path.unlink()  # an older export's, which would pass for this one's
        remove_left_over(path)
    return written


def _tables(capture: Capture, pass_ids: Collection[int] | None) -> Iterator[tuple[str, pa.Table]]:
    for name in TABLES:
        table = capture.table(name, pass_ids=pass_ids)
        if table.num_rows:
            yield name, table
    figures = figures_table(capture, pass_ids)
    if figures.num_rows:
        yield FIGURES_TABLE, figures


def figures_table(capture: Capture, pass_ids: Collection[int] | None) -> pa.Table:
    """One row a pass and scope (pass, prefill, decode): which pass it was, and a column a figure.

    Null where the source cannot say.
    """
    tables = load_tables(capture, pass_ids)
    told = tables.passes.select(["pass_id", *_OF_PASS])
    parts = []
    for scope, frame in pass_figures(*tables).items():
        part = told.add_column(1, "scope", pa.array([scope] * told.num_rows, pa.string()))
        for name in frame:
            part = part.append_column(name, pa.array(frame[name], from_pandas=True))
        parts.append(part)
    return pa.concat_tables(parts)


def _literal(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same texts, those that begin like a formula behind an apostrophe."""
    is_formula = pc.match_substring_regex(texts, _FORMULA)
    return pc.if_else(is_formula, pc.binary_join_element_wise("'", texts, ""), texts)


def _write_csv(table: pa.Table, file: IO[bytes]) -> None:
    """A stretch of rows after the other: labels are written out, and would take gigabytes all at once."""
    with pacsv.CSVWriter(file, _flat(table.slice(0, 0)).schema) as writer:
        for first in range(0, table.num_rows, _CSV_ROWS):
            writer.write_table(_flat(table.slice(first, _CSV_ROWS)))


def _flat(table: pa.Table) -> pa.Table:
    """Only types that a CSV can hold."""
    columns = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        if pa.types.is_dictionary(field.type) or pa.types.is_string(field.type):
            columns[field.name] = _literal(column.cast(pa.string()))
        elif pa.types.is_list(field.type):
            texts = [None if value is None else orjson.dumps(value).decode() for value in column.to_pylist()]
            columns[field.name] = pa.array(texts, pa.string())
        elif pa.types.is_binary(field.type):
            texts = [None if value is None else value.hex() for value in column.to_pylist()]
            columns[field.name] = pa.array(texts, pa.string())
        else:
            columns[field.name] = column
    return pa.table(columns)
