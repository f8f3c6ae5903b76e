"""Sizes that nothing can have, negative or beyond any memory: they read as null and are counted."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_MAX_COPY_BYTES: Final = 1 << 40  # of one row; what many rows add up to stays a number
_MAX_PASS_BYTES: Final = 1 << 53
_LIMITS: Final = {
    "events": dict.fromkeys(("bytes", "whole_bytes"), _MAX_COPY_BYTES),
    "passes": dict.fromkeys(("bytes_h2d", "vram_peak", "vram_resident", "vram_slots", "vram_bank"), _MAX_PASS_BYTES),
}


class ImpossibleSizes:
    """How many were met in a capture. A part may be read often, and in pieces: what most of one reading were counts."""

    def __init__(self) -> None:
        self._most: dict[tuple[str, str], int] = {}

    @property
    def total(self) -> int:
        """In all parts that have been read."""
        return sum(self._most.values())

    def note(self, table_name: str, part: str, number: int) -> None:
        """A reading of a part met this many."""
        self._most[table_name, part] = max(number, self._most.get((table_name, part), 0))


def with_possible_sizes(table: pa.Table, table_name: str) -> tuple[pa.Table, int]:
    """The rows of a table of the schema, impossible sizes as null, and how many these were."""
    n_impossible = 0
    for name, limit in _LIMITS.get(table_name, {}).items():
        if name not in table.column_names:
            continue
        edges = pc.min_max(table[name]).as_py()
        if edges["min"] is None or (edges["min"] >= 0 and edges["max"] <= limit):
            continue
        column = table[name]
        possible = pc.and_(pc.greater_equal(column, 0), pc.less_equal(column, limit))
        n_impossible += pc.sum(pc.invert(possible)).as_py()
        known = pc.if_else(possible, column, pa.scalar(None, column.type))
        table = table.set_column(table.column_names.index(name), table.schema.field(name), known)
    return table, n_impossible
