"""Spools as the tables of a device trace that `profiler.importers.nsys` reads: one row a record, columns by name.

The recorder and Nsight Systems both write what CUPTI says, so all that follows from rows is shared with it: only names
and a few numbers differ. CUPTI counts kinds of memory from 1, that exporter from 0; and here a copy tells the memory of
its host side, whichever way it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from executor.arrays import Int64
from profiler.importers.absent import absent, known_where
from profiler.importers.cupti_spool.nvtx import MARK_EVENT, nvtx_columns
from profiler.importers.cupti_spool.spool import NO_ID, Records, RecordType, SpoolFile
from profiler.importers.nsys.activities import GRAPH, KERNEL, MEMCPY, MEMSET, ON_DEVICE, RUNTIME, SYNCHRONIZATION
from profiler.importers.nsys.nvtx import NVTX, NVTX_TEXT
from profiler.importers.nsys.tables import NO_STREAM, TID_BITS

_HARDWARE: Final = 1 << 48  # the bits above the process in a globalPid, as in that exporter's files
_TO_HOST: Final = (2, 4)  # CUpti_ActivityMemcpyKind: device or array to host
_PEER: Final = 10
_DRIVER: Final = 1  # the kind of a call of the driver, not of the runtime
_STRINGS: Final = "StringIds"
_TYPES: Final[dict[str, tuple[RecordType, ...]]] = {
    KERNEL: (RecordType.KERNEL,),
    MEMCPY: (RecordType.COPY, RecordType.PEER_COPY),
    MEMSET: (RecordType.MEMSET,),
    GRAPH: (RecordType.GRAPH,),
    RUNTIME: (RecordType.CALL,),
    SYNCHRONIZATION: (RecordType.SYNC,),
}
_COLUMNS: Final[dict[str, frozenset[str]]] = {
    KERNEL: frozenset({*ON_DEVICE, "demangledName", "graphNodeId"}),
    MEMCPY: frozenset({*ON_DEVICE, "bytes", "copyKind", "srcKind"}),
    MEMSET: frozenset({*ON_DEVICE, "bytes"}),
    GRAPH: frozenset(ON_DEVICE),
    RUNTIME: frozenset({"start", "end", "globalTid", "correlationId", "nameId"}),
    SYNCHRONIZATION: frozenset({*ON_DEVICE, "syncType"}),
    NVTX: frozenset({"start", "end", "eventType", "globalTid", "endGlobalTid", "textId", "domainId"}),
    _STRINGS: frozenset({"id", "value"}),
}


class SpoolTables:
    """The spools of one recording, as `profiler.importers.nsys.tables.ExportTables`."""

    def __init__(self, files: Sequence[SpoolFile]) -> None:
        self.warnings: list[str] = []
        self.files = list(files)
        self._first_text: list[int] = []
        self._values: list[str] = []
        for file in self.files:  # ids count from 1 in each file; here over all
            self._first_text.append(len(self._values))
            self._values += [file.texts.get(number, "") for number in range(1, max(file.texts, default=0) + 1)]
        self._nvtx: dict[str, Int64] | None = None
        self._read_table = ""
        self._read_rows: list[Records] = []

    def close(self) -> None:
        """All was read at once."""

    def expect(self, table: str, columns: Sequence[str]) -> None:
        """All was read at once."""

    def columns(self, table: str) -> frozenset[str]:
        """The columns of a table."""
        return _COLUMNS.get(table, frozenset())

    def ints(self, table: str, columns: Sequence[str]) -> dict[str, Int64]:
        """Whole columns; see `ExportTables`."""
        if table == _STRINGS:
            return {"id": np.arange(len(self._values), dtype=np.int64)}
        if table == NVTX:
            found = self._nvtx_columns()
            return {name: found[name] if name in found else absent(len(found["start"])) for name in columns}
        return {name: self._column(table, name) for name in columns}

    def texts(self, table: str, column: str) -> pa.ChunkedArray:
        """A whole text column; see `ExportTables`. Ranges have ids of names, and no text of their own."""
        if (table, column) == (NVTX, NVTX_TEXT):
            return pa.chunked_array([pa.nulls(len(self._nvtx_columns()["start"]), pa.string())])
        return pa.chunked_array([pa.array([text or None for text in self._values], pa.string())])

    def small(self, table: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Facts come from the files themselves (`facts`), in no table."""
        return []

    @property
    def n_marks(self) -> int:
        """NVTX marks of all processes."""
        return int(np.count_nonzero(self._nvtx_columns()["eventType"] == MARK_EVENT))

    def text_ids(self, at: int, ids: Int64) -> Int64:
        """The ids of all files' strings for those of file `at`; no value for none, and for what the file lacks."""
        first, behind = [*self._first_text, len(self._values)][at : at + 2]
        known = (ids > 0) & (ids <= behind - first)
        return known_where(known, ids - 1 + first)

    def _nvtx_columns(self) -> dict[str, Int64]:
        if self._nvtx is None:
            parts = [
                nvtx_columns(file, _HARDWARE | file.process << TID_BITS, partial(self.text_ids, at))
                for at, file in enumerate(self.files)
            ]
            self._nvtx = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return self._nvtx

    def _column(self, table: str, name: str) -> Int64:
        """One column of a table of records, over all files."""
        if self._read_table != table:  # the columns of a table are asked for together
            self._read_table, self._read_rows = table, [file.of_type(*_TYPES[table]) for file in self.files]
            if table == RUNTIME:
                self._read_rows = [_told_once(rows) for rows in self._read_rows]
        parts = [self._of_file(at, rows, name) for at, rows in enumerate(self._read_rows)]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _of_file(self, at: int, rows: Records, name: str) -> Int64:
        process = self.files[at].process
        match name:
            case "globalPid":
                return np.full(len(rows), _HARDWARE | process << TID_BITS)
            case "globalTid":
                return _HARDWARE | process << TID_BITS | wide(rows["thread"])
            case "demangledName" | "nameId":
                return self.text_ids(at, wide(rows["name"]))
            case "deviceId" if len(rows) and rows["type"][0] == RecordType.SYNC:
                return self._device_of_context(at, wide(rows["context"]))
            case "srcKind":
                to_host = np.isin(rows["kind"], _TO_HOST)
                return np.where(to_host, rows["dst_kind"], rows["src_kind"]).astype(np.int64) - 1
            case "copyKind":
                return np.where(rows["type"] == RecordType.PEER_COPY, _PEER, rows["kind"]).astype(np.int64)
            case "streamId":
                return known_where(rows["stream"] != NO_STREAM, wide(rows["stream"]))
        field = _FIELDS.get(name)
        return absent(len(rows)) if field is None else _FIELD_VALUES.get(field, wide)(rows[field])

    def _device_of_context(self, at: int, context: Int64) -> Int64:
        """A synchronisation names its context alone."""
        known = self.files[at].of_type(RecordType.CONTEXT)
        numbers, first = np.unique(known["context"], return_index=True)
        if len(numbers) == 0:
            return absent(len(context))
        place = np.minimum(np.searchsorted(numbers, context), len(numbers) - 1)
        return known_where(numbers[place] == context, wide(known["device"][first])[place])


def _told_once(calls: Records) -> Records:
    """Without the driver's calls inside calls of the runtime, which have the same correlation id."""
    is_driver = calls["kind"] == _DRIVER
    if not is_driver.any() or is_driver.all():
        return calls
    told: Records = calls[~(is_driver & np.isin(calls["correlation"], calls["correlation"][~is_driver]))]
    return told


def wide(values: Records) -> Int64:
    """Unsigned numbers as int64; those beyond it wrap below 0, where no time or size is."""
    return values.astype(np.int64)


def _ids(values: Records) -> Int64:
    return known_where(values != NO_ID, wide(values))


_FIELDS: Final = {
    "start": "start",
    "end": "end",
    "bytes": "bytes",
    "deviceId": "device",
    "contextId": "context",
    "correlationId": "correlation",
    "syncType": "kind",
    "graphNodeId": "id",
}
_FIELD_VALUES: Final[dict[str, Callable[[Records], Int64]]] = {"device": _ids, "context": _ids}
