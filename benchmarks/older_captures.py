"""Captures of another time: what an older hprof had not written yet, and what a newer one might write besides."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from profiler.schema import TABLES

Change = Callable[[Path], None]


def older_and_newer(capture: Path) -> dict[str, dict[str, Change]]:
    """Changes to a copy of the capture's folder, by kind and name: each one is a capture of another time."""
    keys = [key for key in orjson.loads((capture / "manifest.json").read_bytes()) if key != "schema"]
    columns = [(table, name) for table in TABLES for name in TABLES[table].names if _parts(capture, table)]
    return {
        "a manifest's key less": {key: without_key(key) for key in keys},
        "a column less": {f"{table}.{name}": without_column(table, name) for table, name in columns},
        "a table less": {table: without_table(table) for table in TABLES if _parts(capture, table)},
        "newer": {
            "a key": with_keys({"later": {"a": [1]}}),
            "a column": with_columns(pa.field("later", pa.float64())),
            "a table": with_table("later"),
            "an event's kind": with_kind("later"),
        },
    }


def without_key(key: str) -> Change:
    """The manifest lacks a key."""
    return lambda folder: _change_manifest(folder, lambda manifest: manifest.pop(key))


def with_keys(more: dict[str, object]) -> Change:
    """The manifest has keys besides."""
    return lambda folder: _change_manifest(folder, lambda manifest: manifest.update(more))


def without_column(table: str, name: str) -> Change:
    """No part of a table has a column."""
    return lambda folder: _change_parts(folder, table, lambda rows: rows.drop_columns([name]))


def with_columns(column: pa.Field) -> Change:
    """Every part of every table has a column besides, of nulls."""

    def change(folder: Path) -> None:
        for table in TABLES:
            _change_parts(folder, table, lambda rows: rows.append_column(column, pa.nulls(len(rows), column.type)))

    return change


def with_kind(kind: str) -> Change:
    """All events are of a kind that is not known yet."""

    def renamed(rows: pa.Table) -> pa.Table:
        at = rows.schema.get_field_index("kind")
        return rows.set_column(at, rows.schema.field(at), pa.array([kind] * len(rows)).cast(rows.schema.field(at).type))

    return lambda folder: _change_parts(folder, "events", renamed)


def without_table(table: str) -> Change:
    """A table's folder is not there."""
    return lambda folder: shutil.rmtree(folder / table)


def with_table(name: str) -> Change:
    """There is one more."""

    def change(folder: Path) -> None:
        (folder / name).mkdir()
        pq.write_table(pa.table({"a": [1]}), folder / name / "all-000000.parquet")

    return change


def _parts(folder: Path, table: str) -> list[Path]:
    return sorted((folder / table).glob("*.parquet"))


def _change_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "manifest.json"
    manifest = orjson.loads(path.read_bytes())
    change(manifest)
    path.write_bytes(orjson.dumps(manifest))


def _change_parts(folder: Path, table: str, change: Callable[[pa.Table], pa.Table]) -> None:
    for path in _parts(folder, table):
        pq.write_table(change(pq.ParquetFile(path).read()), path)
