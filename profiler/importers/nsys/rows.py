"""Rows of an export as parallel int64 columns, before they become an arrow table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from profiler.importers.nsys.tables import NULL, Int64
from profiler.schema import EVENT_KINDS

MEMORIES: Final = ("pinned", "pageable", "device", "managed")
PHASES: Final = ("prefill", "decode")
ABSENT: Final = -1  # a label column's NULL

Mask = npt.NDArray[np.bool_]

# What a row holds; a part that does not name a column has NULL in it. Label columns hold codes.
COLUMNS: Final = (
    *("start", "end", "process", "device", "context", "stream", "thread", "correlation"),
    *("kind", "name", "bytes", "memory", "detail"),
)
_KIND_CODES: Final = {kind: code for code, kind in enumerate(EVENT_KINDS)}


@dataclass(slots=True)
class Rows:
    """Parallel columns, see COLUMNS. `process` and `thread` keep nsys's whole 64-bit ids (globalTid >> 24)."""

    columns: dict[str, Int64]

    def __len__(self) -> int:
        return len(self.columns["start"])

    def __getitem__(self, name: str) -> Int64:
        return self.columns[name]

    def where(self, mask: Mask) -> Rows:
        """Only the rows that `mask` keeps."""
        return Rows({name: values[mask] for name, values in self.columns.items()})

    def part(self, rows: slice) -> Rows:
        """A view of some neighbouring rows."""
        return Rows({name: values[rows] for name, values in self.columns.items()})

    def shifted(self, by_ns: int) -> Rows:
        """The same rows, later."""
        return Rows(self.columns | {name: self.columns[name] + by_ns for name in ("start", "end")})


def make_rows(kind: str | Int64, **given: Int64 | int) -> Rows:
    """Rows of one kind (or of kind codes); scalars are repeated, missing columns are NULL."""
    n_rows = len(np.asarray(given["start"]))
    kinds = _KIND_CODES[kind] if isinstance(kind, str) else kind
    values: Mapping[str, Int64 | int] = {"kind": kinds, **given}
    return Rows({name: np.broadcast_to(np.asarray(values.get(name, NULL), np.int64), (n_rows,)) for name in COLUMNS})


def kind_code(kind: str) -> int:
    """The code of an event kind in the `kind` column."""
    return _KIND_CODES[kind]


def concatenate(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts."""
    return Rows({name: np.concatenate([part[name] for part in parts]) for name in COLUMNS})


def compacted(codes: Int64, texts: Sequence[str]) -> tuple[Int64, list[str]]:
    """The same codes over only the texts that occur."""
    used = np.zeros(len(texts), np.bool_)
    used[codes[codes >= 0]] = True
    translation = np.append(np.cumsum(used) - 1, ABSENT)
    return translation[np.maximum(codes, ABSENT)], [
        text for text, keep in zip(texts, used.tolist(), strict=True) if keep
    ]


def look_up(values: Int64, index: Int64, missing: int) -> Int64:
    """values[index], `missing` where the index is negative."""
    return np.append(values, missing)[np.maximum(index, -1)]
