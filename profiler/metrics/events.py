"""The events table as numpy arrays, where every metric starts. Null is ABSENT in these arrays, never 0.

What a row counts as (a copy of one direction, compute, a wait, ...) is its role, which `profiler.schema` defines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from executor.arrays import Flags, Int64
from profiler.arithmetic.intervals import MAX_ABS_NS
from profiler.schema import ABSENT, MEMORIES, PHASES, label_codes, roles_of

Codes = npt.NDArray[np.int8]
Ints = npt.NDArray[np.int32]

EVENT_COLUMNS: Final = (
    *("pass_id", "phase", "ubatch", "layer", "process", "device", "stream", "kind", "tensor"),
    *("t_start", "t_end", "bytes", "whole_bytes", "source_memory", "detail"),
)


@dataclass(frozen=True, slots=True)
class Events:
    """Parallel arrays, one element a row. Labels are codes: `role` indexes ROLES, `phase` PHASES, ..."""

    pass_id: Ints
    phase: Codes
    ubatch: Ints
    layer: Ints
    process: Int64
    device: Ints
    stream: Ints  # indexes stream_names
    role: Codes
    tensor: Ints
    start: Int64  # ns
    end: Int64  # ns
    n_bytes: Int64
    whole_bytes: Int64
    memory: Codes
    stream_names: tuple[str, ...]
    n_impossible: int  # rows left out: no times, an end before its start, times beyond 104 days

    def __len__(self) -> int:
        return len(self.start)

    def where(self, mask: Flags) -> Events:
        """Only the rows that `mask` keeps."""
        return self if mask.all() else self._of_rows(mask)

    def _of_rows(self, rows: Flags | slice) -> Events:
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        kept: dict[str, Any] = {n: v[rows] for n, v in columns.items() if isinstance(v, np.ndarray)}
        return replace(self, **kept)

    def slices(self, n_rows: int) -> Iterator[Events]:
        """The same rows, in turns of this many; at least one, and nothing is copied."""
        for start in range(0, max(len(self), 1), n_rows):
            yield self._of_rows(slice(start, start + n_rows))

    @classmethod
    def from_table(cls, table: pa.Table) -> Events:
        """Arrays of a table with EVENT_COLUMNS; rows with impossible times are left out and counted."""
        stream, stream_names = label_codes(table["stream"])
        tensor, _ = label_codes(table["tensor"])
        events = cls(
            **{name: ints(table[name], np.int32) for name in ("pass_id", "ubatch", "layer", "device")},
            process=ints(table["process"], np.int64),
            phase=_codes(table["phase"], PHASES),
            role=roles_of(table["kind"], table["detail"]),
            memory=_codes(table["source_memory"], MEMORIES),
            stream=stream,
            tensor=tensor,
            start=ints(table["t_start"], np.int64, null=MAX_ABS_NS + 1),
            end=ints(table["t_end"], np.int64, null=-MAX_ABS_NS - 1),
            n_bytes=ints(table["bytes"], np.int64),
            whole_bytes=ints(table["whole_bytes"], np.int64),
            stream_names=stream_names,
            n_impossible=0,
        )
        return _without_impossible(events)


def _without_impossible(events: Events) -> Events:
    possible = (events.start >= -MAX_ABS_NS) & (events.end <= MAX_ABS_NS) & (events.end >= events.start)
    n_impossible = len(events) - int(np.count_nonzero(possible))
    return events if n_impossible == 0 else replace(events.where(possible), n_impossible=n_impossible)


def ints(column: pa.ChunkedArray, kind: type[np.signedinteger], null: int = ABSENT) -> npt.NDArray[Any]:
    """An integer column as an array; `null` for null."""
    filled = pc.fill_null(column, null) if column.null_count else column
    values: npt.NDArray[Any] = filled.to_numpy()
    return values.astype(kind, copy=False)


def _codes(column: pa.ChunkedArray, known: Sequence[str]) -> Codes:
    """Codes into `known`, ABSENT for null and for any other label."""
    indices, names = label_codes(column)
    translation = np.array([known.index(n) if n in known else ABSENT for n in names] + [ABSENT], np.int8)
    return translation[indices]
