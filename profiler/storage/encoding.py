"""How the tables are encoded in parquet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def stored_schema(tables: Sequence[pa.Table]) -> pa.Schema:
    """The schema of these tables for a file: columns without any null are marked so.

    Parquet then keeps no word on each cell of whether it is there, which takes a third of the time to decode.
    """
    return pa.schema(
        [field.with_nullable(any(table[field.name].null_count for table in tables)) for field in tables[0].schema]
    )


def parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """Labels and small numbers repeat, times and sizes grow in small steps: half the size, and faster both ways.

    1 M events take 6.4 MB and 0.07 s to decode so, against 11.4 MB and 0.10 s with arrow's defaults.
    """
    steps = [field.name for field in schema if field.type == pa.int64()]
    repeating = [field.name for field in schema if field.name not in steps and not pa.types.is_nested(field.type)]
    return {
        "compression": "zstd",
        "use_dictionary": repeating,
        "column_encoding": dict.fromkeys(steps, "DELTA_BINARY_PACKED"),
        # Readers skip row groups by numbers, never by labels; the least and greatest label cost a third of the time.
        "write_statistics": [field.name for field in schema if not pa.types.is_dictionary(field.type)],
    }
