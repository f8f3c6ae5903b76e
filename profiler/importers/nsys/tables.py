"""What an nsys export looks like to the importer: tables of integer columns and a few texts, any of which may miss.

Two implementations: `sqlite.SqliteTables` and `folder.FolderTables`. Nothing else knows where rows come from.
Also nsys's enum numbers, which are the same in every schema from 2.9.1 on; that one has no enum tables at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from executor.arrays import Int64
from executor.errors import HprofError

MAX_TEXT_CHARS: Final = 1024
MAX_SMALL_ROWS: Final = 20_000
MAX_ROWS: Final = 1 << 27


class ExportTables(Protocol):
    """One export. Columns come back aligned: row i of every column of a table is the same row."""

    warnings: list[str]

    def expect(self, table: str, columns: Sequence[str]) -> None:
        """These columns will be asked for, in one call: they may be read meanwhile."""

    def columns(self, table: str) -> frozenset[str]:
        """The columns of a table; empty when the export does not have it."""

    def ints(self, table: str, columns: Sequence[str]) -> dict[str, Int64]:
        """Whole columns; no value (`importers.absent`) where a cell is no integer or the export lacks the column.

        Empty when the table is missing.
        """

    def texts(self, table: str, column: str) -> pa.ChunkedArray:
        """A whole text column, null where a cell is no text, cut to MAX_TEXT_CHARS."""

    def small(self, table: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        """At most MAX_SMALL_ROWS rows of a table of facts; None for what is missing."""

    def close(self) -> None: ...


def first_present(tables: ExportTables, *names: str) -> str:
    """The first of several names of one table that the export has; the last name when it has none."""
    return next((name for name in names if tables.columns(name)), names[-1])


def check_aligned(table: str, numbers: Int64, texts: pa.ChunkedArray) -> None:
    """Raises HprofError when two columns of a table differ in length, which only damage can do."""
    if len(numbers) != len(texts):
        raise HprofError(
            f"the table {table} of the export is damaged: its columns have {len(numbers):,} and {len(texts):,} rows; "
            "run `nsys export` again."
        )


# ENUM_CUDA_MEMCPY_OPER -> (kind, name, detail); 0 (unknown) and 9 (host to host) are no device copies
COPY_KINDS: Final[dict[int, tuple[str, str, str | None]]] = {
    1: ("h2d", "memcpy HtoD", None),
    2: ("d2h", "memcpy DtoH", None),
    3: ("h2d", "memcpy HtoA", None),
    4: ("d2h", "memcpy AtoH", None),
    5: ("d2d", "memcpy AtoA", None),
    6: ("d2d", "memcpy AtoD", None),
    7: ("d2d", "memcpy DtoA", None),
    8: ("d2d", "memcpy DtoD", None),
    10: ("d2d", "memcpy PtoP", "peer"),
    11: ("h2d", "UVM HtoD", "uvm"),
    12: ("d2h", "UVM DtoH", "uvm"),
    13: ("d2d", "UVM DtoD", "uvm"),
}
HOST_TO_HOST: Final = 9

# ENUM_CUDA_MEM_KIND: one less than CUPTI's own CUpti_ActivityMemoryKind; 7 is unknown
MEMORY_KINDS: Final[dict[int, str]] = {
    0: "pageable",
    1: "pinned",
    2: "device",
    3: "device",
    4: "managed",
    5: "device",
    6: "managed",
}

# ENUM_CUPTI_SYNC_TYPE
SYNC_KINDS: Final[dict[int, str]] = {
    1: "event synchronize",
    2: "stream wait event",
    3: "stream synchronize",
    4: "context synchronize",
}
NO_STREAM: Final = 0xFFFFFFFF

# ENUM_NSYS_EVENT_TYPE, the part that NVTX uses
PUSH_POP_RANGE: Final = 59
START_END_RANGE: Final = 60
DOMAIN_CREATE: Final = 75

# DIAGNOSTIC_EVENT.severity
DIAGNOSTIC_WARNING: Final = 2
DIAGNOSTIC_ERROR: Final = 3

# globalTid = <hw:8><vm:8><pid:24><tid:24>
TID_BITS: Final = 24
ID_MASK: Final = (1 << 24) - 1
