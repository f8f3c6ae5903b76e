"""Gathers a finished capture's many small parts into few large ones, which read several times faster.

A running capture has a part a pass, so that a kill loses one pass at most. When it is complete, its parts are copied to
`all-000000.parquet` and so on, the manifest says so, and the small ones go: in this order, so that a reader finds all
passes at any instant (it reads the `all-` parts exactly when the manifest says that they are whole).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from profiler.schema import TABLES
from profiler.storage.encoding import parquet_options, stored_schema
from profiler.storage.parts import part_names, read_parts
from profiler.storage.store import Store

GATHERED: Final = "all-"  # how the names of gathered parts begin; a recorder's own never do
_PART_ROWS: Final = 1 << 20
_GROUP_ROWS: Final = 1 << 15  # row groups hold whole passes, so that one pass is read without the rest
_MAX_GROUP_ROWS: Final = 1 << 18  # those of a longer one, so that a stretch of it is


def gather(store: Store) -> None:
    """Write the gathered parts of every table, from the parts of committed passes. Removes nothing."""
    committed = set(part_names(store, "passes"))
    for table_name in TABLES:
        parts = [part for part in part_names(store, table_name) if part in committed and not is_gathered(part)]
        tables = read_parts(store, table_name, parts, TABLES[table_name].names)
        for number, groups in enumerate(_chunked(_grouped(tables), _PART_ROWS)):
            store.write(f"{table_name}/{GATHERED}{number:06d}.parquet", _one_file(groups))


def remove(store: Store, *, gathered: bool) -> None:
    """Remove the gathered parts, or all the others."""
    for table_name in TABLES:
        for part in part_names(store, table_name):
            if is_gathered(part) == gathered:
                store.remove(f"{table_name}/{part}.parquet")


def is_gathered(part: str) -> bool:
    """Whether a part's name is one of `gather`'s."""
    return part.startswith(GATHERED)


def _grouped(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Small tables joined until they fill a row group."""
    for group in _chunked(tables, _GROUP_ROWS):
        yield pa.concat_tables(group).unify_dictionaries()


def _chunked(tables: Iterator[pa.Table], n_rows: int) -> Iterator[list[pa.Table]]:
    """Lists of tables with at least `n_rows` rows together, the last one excepted."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(t.num_rows for t in waiting) >= n_rows:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _one_file(groups: list[pa.Table]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    schema = stored_schema(groups)
    with pq.ParquetWriter(sink, schema, **parquet_options(schema)) as writer:
        for group in groups:
            writer.write_table(group.cast(schema), row_group_size=_MAX_GROUP_ROWS)
    return sink.getvalue()
