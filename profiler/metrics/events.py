"""The events table as numpy arrays, and what each row counts as: a copy of one direction, compute, host compute or a
wait. Every metric starts here. Null is ABSENT in these arrays, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from profiler.arithmetic.groups import Mask
from profiler.arithmetic.intervals import MAX_ABS_NS, Int64
from profiler.schema import UNCOUNTED

ABSENT: Final = -1
PHASES: Final = ("prefill", "decode")
MEMORIES: Final = ("pinned", "pageable", "device", "managed")
DIRECTIONS: Final = ("h2d", "d2h", "d2d", "uvm_h2d", "uvm_d2h")
# What a row counts as. `cpu_compute` is the host's: it hides no copy. Host calls, memsets, graph launches, collectives
# (kernels that mostly wait for other devices) and the kernels inside hprof's own steps count as nothing.
ROLES: Final = (*DIRECTIONS, "compute", "cpu_compute", "wait")
H2D: Final = ROLES.index("h2d")  # explicit host to device copies: the direction that prefetch is about
COMPUTE, CPU_COMPUTE, WAIT = map(ROLES.index, ("compute", "cpu_compute", "wait"))
COPIES: Final = tuple(range(len(DIRECTIONS)))


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

    def where(self, mask: Mask) -> Events:
        """Only the rows that `mask` keeps."""
        return self if mask.all() else self._of_rows(mask)

    def _of_rows(self, rows: Mask | slice) -> Events:
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
        stream, stream_names = labels(table["stream"])
        tensor, _ = labels(table["tensor"])
        events = cls(
            **{name: ints(table[name], np.int32) for name in ("pass_id", "ubatch", "layer", "device")},
            process=ints(table["process"], np.int64),
            phase=_codes(table["phase"], PHASES),
            role=roles(table["kind"], table["detail"]),
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


def labels(column: pa.ChunkedArray) -> tuple[Ints, tuple[str, ...]]:
    """Codes into the column's own labels, ABSENT for null."""
    if column.num_chunks == 0:
        return np.empty(0, np.int32), ()
    array = column.unify_dictionaries().combine_chunks()
    names = tuple(str(name) for name in array.dictionary.to_pylist())
    indices = array.indices
    return (indices.fill_null(ABSENT) if indices.null_count else indices).to_numpy(), names


def roles(kind: pa.ChunkedArray, detail: pa.ChunkedArray) -> Codes:
    """What each row counts as: codes into ROLES, ABSENT for nothing."""
    (kind_code, kinds), (detail_code, details) = labels(kind), labels(detail)
    of_pair = np.array([[role_of(k, d) for d in (*details, None)] for k in (*kinds, None)], np.int8)
    return of_pair[kind_code, detail_code]


def role_of(kind: str | None, detail: str | None) -> int:
    """What a row of this kind and detail counts as: an index into ROLES, ABSENT for nothing."""
    if detail in UNCOUNTED or kind not in ROLES:
        return ABSENT
    managed = f"uvm_{kind}"
    return ROLES.index(managed if detail == "uvm" and managed in ROLES else kind)


def _codes(column: pa.ChunkedArray, known: Sequence[str]) -> Codes:
    """Codes into `known`, ABSENT for null and for any other label."""
    indices, names = labels(column)
    translation = np.array([known.index(n) if n in known else ABSENT for n in names] + [ABSENT], np.int8)
    return translation[indices]
