"""The step from rows to the arrow table `events`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from profiler.importers.nsys.rows import MEMORIES, Rows, compacted
from profiler.importers.nsys.tables import NULL, Int64
from profiler.schema import EVENT_KINDS, EVENTS


def event_table(
    rows: Rows, texts: Sequence[str], extra: Mapping[str, Int64], labels: Mapping[str, Sequence[str]]
) -> pa.Table:
    """Rows as the `events` table.

    texts: what `name` and `detail` codes mean. extra: more columns of the schema, NULL (for labels: negative)
    where unknown. labels: what the codes of the label columns in `extra` mean.
    """
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
        known = labels.get(name)
        columns[name] = _ints(values, EVENTS.field(name).type) if known is None else _labels(values, known)
    arrays = [columns.get(field.name) for field in EVENTS]
    filled = [pa.nulls(len(rows), f.type) if a is None else a for a, f in zip(arrays, EVENTS, strict=True)]
    return pa.Table.from_arrays(filled, schema=EVENTS)


def _ints(values: Int64, kind: pa.DataType) -> pa.Array:
    if kind == pa.int32():
        small = values.astype(np.int32)
        missing = small != values  # NULL, and what does not fit
        return pa.array(small, kind, mask=missing if missing.any() else None)
    missing = values == NULL
    return pa.array(values, kind, mask=missing if missing.any() else None)


def _labels(codes: Int64, texts: Sequence[str]) -> pa.DictionaryArray:
    small = codes.astype(np.int32)  # NULL wraps to 0, so the mask comes from the whole number
    missing = codes < 0
    indices = pa.array(small, pa.int32(), mask=missing if missing.any() else None)
    return pa.DictionaryArray.from_arrays(indices, pa.array(texts, pa.string()), safe=False)
