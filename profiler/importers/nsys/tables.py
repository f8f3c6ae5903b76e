"""What an nsys export looks like to the importer: tables of integer columns and a few texts, any of which may miss.

Two implementations: `sqlite.SqliteTables` and `folder.FolderTables`. Nothing else knows where rows come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from executor.errors import HprofError

Int64 = npt.NDArray[np.int64]

# SQL NULL, a column that the export lacks, and a value that is no integer: none of them is a number.
NULL: Final = int(np.iinfo(np.int64).min)
MAX_TEXT_CHARS: Final = 1024
MAX_SMALL_ROWS: Final = 20_000
MAX_ROWS: Final = 1 << 27


class Tables(Protocol):
    """One export. Columns come back aligned: row i of every column of a table is the same row."""

    warnings: list[str]

    def expect(self, table: str, columns: Sequence[str]) -> None:
        """These columns will be asked for, in one call: they may be read meanwhile."""

    def columns(self, table: str) -> frozenset[str]:
        """The columns of a table; empty when the export does not have it."""

    def ints(self, table: str, columns: Sequence[str]) -> dict[str, Int64]:
        """Whole columns as int64, NULL where a cell is no integer; empty arrays when the table is missing."""

    def texts(self, table: str, column: str) -> pa.ChunkedArray:
        """A whole text column, null where a cell is no text, cut to MAX_TEXT_CHARS."""

    def small(self, table: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        """At most MAX_SMALL_ROWS rows of a table of facts; None for what is missing."""

    def close(self) -> None: ...


def first_present(tables: Tables, *names: str) -> str:
    """The first of several names of one table that the export has; the last name when it has none."""
    return next((name for name in names if tables.columns(name)), names[-1])


def check_aligned(table: str, numbers: Int64, texts: pa.ChunkedArray) -> None:
    """Raises HprofError when two columns of a table differ in length, which only damage can do."""
    if len(numbers) != len(texts):
        raise HprofError(
            f"the table {table} of the export is damaged: its columns have {len(numbers):,} and {len(texts):,} rows; "
            "run `nsys export` again."
        )
