"""Reads the SQLite export: read-only, no views, no code of the file runs, and every query has a budget.

Nine columns of 1 M kernels took 2.5 s fetched as tuples and 1.1 s when SQLite joins each column into one text
that numpy parses; so numbers travel as text, 65,536 rows a query.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from executor.arrays import Int64
from executor.errors import HprofError
from profiler.importers.absent import SQL_LITERAL, absent
from profiler.importers.nsys.tables import MAX_SMALL_ROWS, MAX_TEXT_CHARS

SQLITE_MAGIC: Final = b"SQLite format 3\x00"
_HEADER_BYTES: Final = 100
_CHUNK_ROWS: Final = 1 << 16
_MAX_VALUE_BYTES: Final = 1 << 24
# A row takes at least 4 bytes of the file and a few hundred instructions; a damaged b-tree that repeats
# its pages without end runs out of this instead.
_OPS_PER_TICK: Final = 1_000_000
_TICKS_PER_MB: Final = 20
_FREE_TICKS: Final = 50


class SqliteTables:
    """One `.sqlite` file. Raises HprofError, naming the file, whenever SQLite cannot read it."""

    def __init__(self, path: Path) -> None:
        self.warnings: list[str] = []
        self._path = path
        self._columns: dict[str, frozenset[str]] = {}
        _check_header(path)
        self._ticks_left = _FREE_TICKS + _TICKS_PER_MB * (path.stat().st_size >> 20)
        with self._one_error():
            self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
            self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
            self._db.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self._db.set_progress_handler(self._tick, _OPS_PER_TICK)
            self._db.execute("PRAGMA trusted_schema=OFF")
            self._ordinary = self._ordinary_tables()
        if path.with_name(path.name + "-wal").exists():
            self.warnings.append(f"{path.name}-wal lies beside {path.name}; what it holds was not read.")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def columns(self, table: str) -> frozenset[str]:
        """The columns of an ordinary table; empty for anything else of that name."""
        if table not in self._ordinary:
            return frozenset()
        if table not in self._columns:
            with self._one_error():
                rows = self._db.execute(f'PRAGMA table_info("{table}")').fetchall()
            self._columns[table] = frozenset(row[1] for row in rows)
        return self._columns[table]

    def expect(self, table: str, columns: Sequence[str]) -> None:
        """A connection reads for one thread, so nothing is read ahead."""

    def ints(self, table: str, columns: Sequence[str]) -> dict[str, Int64]:
        """Whole columns; see `tables.ExportTables`."""
        present = [name for name in columns if name in self.columns(table)]
        with self._one_error():
            n_rows = self._count(table)
            found = self._joined(table, present) if self._has_rowid(table) else None
            # Row ids that are damaged make the seeks between chunks skip rows; a plain scan does not seek.
            is_whole = found is not None and all(len(column) == n_rows for column in found)
            values = found if found is not None and is_whole else self._checked(table, present)
            n_rows = len(values[0]) if present else n_rows
        read = dict(zip(present, values, strict=True))
        return {name: read[name] if name in read else absent(n_rows) for name in columns}

    def texts(self, table: str, column: str) -> pa.ChunkedArray:
        """A whole text column; see `tables.ExportTables`."""
        if column not in self.columns(table):
            n_rows = self._count(table)
            return pa.chunked_array([pa.nulls(n_rows, pa.string())])
        order = " ORDER BY rowid" if self._has_rowid(table) else ""
        cell = f'CASE typeof("{column}") WHEN \'text\' THEN substr("{column}", 1, {MAX_TEXT_CHARS}) END'
        with self._one_error():
            cursor = self._db.execute(f'SELECT {cell} FROM "{table}"{order}')
            parts = iter(lambda: cursor.fetchmany(_CHUNK_ROWS), [])
            return pa.chunked_array([pa.array([c for (c,) in part], pa.string()) for part in parts], pa.string())

    def small(self, table: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        """A table of facts; see `tables.ExportTables`."""
        present = [name for name in columns if name in self.columns(table)]
        if not present:
            return []
        cells = ", ".join(f"CASE typeof({_quoted(c)}) WHEN 'blob' THEN NULL ELSE {_quoted(c)} END" for c in present)
        with self._one_error():
            rows = self._db.execute(f'SELECT {cells} FROM "{table}" LIMIT {MAX_SMALL_ROWS}').fetchall()
        return [dict.fromkeys(columns) | dict(zip(present, row, strict=True)) for row in rows]

    def _joined(self, table: str, columns: Sequence[str]) -> list[Int64] | None:
        """Columns by way of text; None when a cell is no integer, which the text shows by not parsing."""
        if not columns:
            return []
        cells = ", ".join(_quoted(name) for name in columns)
        joined = ", ".join(f"group_concat(ifnull({_quoted(name)}, {SQL_LITERAL}))" for name in columns)
        query = (
            f"SELECT max(r), count(*), {joined} FROM "
            f'(SELECT rowid AS r, {cells} FROM "{table}" WHERE rowid >= ? ORDER BY rowid LIMIT {_CHUNK_ROWS})'
        )
        parts: list[list[Int64]] = []
        next_rowid, n_rows = np.iinfo(np.int64).min, _CHUNK_ROWS
        # In a damaged file row ids may come in no order: a short chunk is the last one whatever they say.
        while n_rows == _CHUNK_ROWS and next_rowid <= np.iinfo(np.int64).max:
            last, n_rows, *texts = self._db.execute(query, (next_rowid,)).fetchone()
            chunk = [_parsed(text, n_rows) for text in texts] if n_rows else []
            if any(column is None for column in chunk):
                return None
            parts += [[column for column in chunk if column is not None]] if n_rows else []
            next_rowid = last + 1 if n_rows else next_rowid
        return [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else _empty(columns)

    def _checked(self, table: str, columns: Sequence[str]) -> list[Int64]:
        """Columns cell by cell, each checked to be an integer."""
        if not columns:
            return []
        cells = ", ".join(
            f"CASE typeof({_quoted(c)}) WHEN 'integer' THEN {_quoted(c)} ELSE {SQL_LITERAL} END" for c in columns
        )
        order = " ORDER BY rowid" if self._has_rowid(table) else ""
        cursor = self._db.execute(f'SELECT {cells} FROM "{table}"{order}')
        flat = np.fromiter(chain.from_iterable(cursor), np.int64)
        return list(np.ascontiguousarray(flat.reshape(-1, len(columns)).T))

    def _count(self, table: str) -> int:
        if table not in self._ordinary:
            return 0
        with self._one_error():
            return int(self._db.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0])

    def _ordinary_tables(self) -> dict[str, bool]:
        """Name -> whether it has row ids. Views and virtual tables would run what the file says: left out."""
        found: dict[str, bool] = {}
        for name, kind, sql in self._db.execute("SELECT name, type, sql FROM sqlite_master LIMIT 10000"):
            text = str(sql).upper()
            if kind == "table" and not text.startswith("CREATE VIRTUAL") and '"' not in str(name):
                found[str(name)] = "WITHOUT ROWID" not in text
            elif kind == "view" and str(name).startswith(("CUPTI_", "NVTX_", "StringIds")):
                self.warnings.append(f"{name} is a view in this file, which nsys never writes; it was not read.")
        return found

    def _has_rowid(self, table: str) -> bool:
        hides = {"rowid", "_rowid_", "oid"} & {name.lower() for name in self.columns(table)}
        return self._ordinary.get(table, False) and not hides

    def _tick(self) -> bool:
        self._ticks_left -= 1
        return self._ticks_left < 0

    @contextmanager
    def _one_error(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            # Ctrl-C is raised in `_tick`, if anywhere; sqlite3 drops it there and says that it was interrupted.
            if isinstance(error, sqlite3.OperationalError) and str(error) == "interrupted" and self._ticks_left >= 0:
                raise KeyboardInterrupt from error
            # Some messages quote the damaged schema, over several lines.
            reason = " ".join(str(error).split())[:200]
            raise HprofError(
                f"{self._path} cannot be read as an Nsight Systems export ({reason}); "
                "write it again with `nsys export -t sqlite`."
            ) from error


def _check_header(path: Path) -> None:
    """Refuse what is no SQLite file or was cut short (SQLite itself may read neither a page nor notice).

    The header (sqlite.org/fileformat2.html) holds the page size at byte 16 and the number of pages at 28, which
    counts only if the change counters at 24 and 92 agree.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if not header.startswith(SQLITE_MAGIC):
        raise HprofError(f"{path} is no SQLite file; export the report with `nsys export -t sqlite`.")
    if len(header) == _HEADER_BYTES and header[24:28] != header[92:96]:
        return
    page_bytes = int.from_bytes(header[16:18], "big")
    expected = int.from_bytes(header[28:32], "big") * (65536 if page_bytes == 1 else page_bytes)
    if path.stat().st_size < max(expected, _HEADER_BYTES):
        raise HprofError(
            f"{path} was cut short: it has {path.stat().st_size:,} bytes and its header says {expected:,}; "
            "copy it again or export it again."
        )


def _quoted(name: str) -> str:
    return '"' + name + '"'


def _empty(columns: Sequence[str]) -> list[Int64]:
    return [np.empty(0, np.int64) for _ in columns]


def _parsed(text: str, n_rows: int) -> Int64 | None:
    with warnings.catch_warnings():
        # numpy stops at what it cannot parse and warns; fewer numbers than rows says the same
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            values: Int64 = np.fromstring(text, np.int64, sep=",")
        except ValueError:
            return None
    return values if len(values) == n_rows else None
