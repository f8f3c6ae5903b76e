"""Event rows as parallel int64 arrays, the rules that drop impossible ones, and the step to an arrow table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from profiler.importers.nsys.tables import NULL, Int64
from profiler.schema import EVENT_KINDS, EVENTS

MEMORIES: Final = ("pinned", "pageable", "device", "managed")
PHASES: Final = ("prefill", "decode")
MAX_DURATION_NS: Final = 1 << 50  # 13 days
MAX_FROM_MIDDLE_NS: Final = 1 << 52  # 52 days before or after the median row

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


def drop_impossible(rows: Rows, what: str, dropped: Counter[str], *, on_device: bool) -> Rows:
    """Without the rows whose own times cannot be; each is counted under a reason."""
    start, end = rows["start"], rows["end"]
    untimed = (start == NULL) | (end == NULL)
    if on_device:
        # CUPTI's way to say that it could not collect the times.
        untimed |= (start == 0) & (end == 0)
    backwards = ~untimed & (end < start)
    long = ~untimed & ~backwards & (end.astype(np.float64) - start.astype(np.float64) > MAX_DURATION_NS)
    reasons = {"no times": untimed, "end before start": backwards, "longer than 13 days": long}
    return _without(rows, what, reasons, dropped)


def time_limits(start: Int64) -> tuple[int, int]:
    """52 days before and after the median start: what lies outside has damaged times."""
    middle = int(np.partition(start, len(start) // 2)[len(start) // 2]) if len(start) else 0
    low = max(middle - MAX_FROM_MIDDLE_NS, NULL + 1)
    return low, min(middle + MAX_FROM_MIDDLE_NS, np.iinfo(np.int64).max - MAX_DURATION_NS)


def drop_far(rows: Rows, what: str, limits: tuple[int, int], dropped: Counter[str]) -> Rows:
    """Without the rows that start outside of `time_limits`."""
    far = (rows["start"] < limits[0]) | (rows["start"] > limits[1])
    return _without(rows, what, {"more than 52 days from the others": far}, dropped)


def drop(rows: Rows, what: str, reason: str, mask: Mask, dropped: Counter[str]) -> Rows:
    """Without the rows of `mask`, counted."""
    return _without(rows, what, {reason: mask}, dropped)


def _without(rows: Rows, what: str, reasons: Mapping[str, Mask], dropped: Counter[str]) -> Rows:
    bad = np.zeros(len(rows), np.bool_)
    for reason, mask in reasons.items():
        if count := int(np.count_nonzero(mask)):
            dropped[f"{what}: {reason}"] += count
            bad |= mask
    return rows.where(~bad) if bad.any() else rows


def distinct(values: Int64) -> tuple[Int64, Int64]:
    """The distinct values in the order that they come, and the index of each value among them."""
    encoded = pa.array(values).dictionary_encode()
    return encoded.dictionary.to_numpy(zero_copy_only=False), encoded.indices.to_numpy().astype(np.int64)


def event_table(
    rows: Rows, texts: Sequence[str], extra: Mapping[str, Int64], labels: Mapping[str, Sequence[str]]
) -> pa.Table:
    """Rows as the `events` table.

    texts: what `name` codes mean. extra: more columns of the schema, NULL (or for labels ABSENT) where unknown.
    labels: what the codes of a label column in `extra` mean.
    """
    n_rows = len(rows)
    columns: dict[str, pa.Array] = {
        "process": _ints(rows["process"], pa.int64()),
        "device": _ints(rows["device"], pa.int32()),
        "t_start": _ints(rows["start"], pa.int64()),
        "t_end": _ints(rows["end"], pa.int64()),
        "bytes": _ints(rows["bytes"], pa.int64()),
        "correlation_id": _ints(rows["correlation"], pa.int64()),
        "kind": _labels(rows["kind"], EVENT_KINDS),
        "name": _labels(*compacted(rows["name"], texts)),
        "source_memory": _labels(rows["memory"], MEMORIES),
        "detail": _labels(*compacted(rows["detail"], texts)),
    }
    for name, values in extra.items():
        columns[name] = _labels(values, labels[name]) if name in labels else _ints(values, EVENTS.field(name).type)
    arrays = [columns.get(field.name) for field in EVENTS]
    filled = [pa.nulls(n_rows, f.type) if a is None else a for a, f in zip(arrays, EVENTS, strict=True)]
    return pa.Table.from_arrays(filled, schema=EVENTS)


def _ints(values: Int64, kind: pa.DataType) -> pa.Array:
    missing = values == NULL
    if kind == pa.int32():
        limits = np.iinfo(np.int32)
        missing |= (values < limits.min) | (values > limits.max)
        values = np.where(missing, 0, values).astype(np.int32)
    return pa.array(values, kind, mask=missing if missing.any() else None)


def _labels(codes: Int64, texts: Sequence[str]) -> pa.DictionaryArray:
    missing = codes < 0
    small = np.where(missing, 0, codes).astype(np.int32)
    indices = pa.array(small, pa.int32(), mask=missing if missing.any() else None)
    return pa.DictionaryArray.from_arrays(indices, pa.array(texts, pa.string()), safe=True)


def compacted(codes: Int64, texts: Sequence[str]) -> tuple[Int64, list[str]]:
    """The same codes over only the texts that occur."""
    used = np.zeros(len(texts), np.bool_)
    used[codes[codes >= 0]] = True
    translation = np.append(np.cumsum(used) - 1, ABSENT)
    return translation[np.maximum(codes, ABSENT)], [
        text for text, keep in zip(texts, used.tolist(), strict=True) if keep
    ]
