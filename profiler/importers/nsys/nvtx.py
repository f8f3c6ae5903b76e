"""NVTX ranges of an export: when, on which thread, what they are called, and in whose domain."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from profiler.importers.nsys import enums
from profiler.importers.nsys.device_rows import process_of
from profiler.importers.nsys.project import NONE, match
from profiler.importers.nsys.rows import ABSENT, Rows, drop_impossible, make_rows
from profiler.importers.nsys.strings import Labels
from profiler.importers.nsys.tables import NULL, Int64, Tables

NVTX: Final = "NVTX_EVENTS"
_COLUMNS: Final = ("start", "end", "eventType", "globalTid", "endGlobalTid", "textId", "domainId")


def read_ranges(tables: Tables, labels: Labels, dropped: Counter[str]) -> Rows:
    """All ranges that can be projected, as rows: `name`, `thread`, and the domain's name in `detail`.

    A range that was still open when the recording stopped has no end: it can own nothing.
    """
    read = tables.ints(NVTX, _COLUMNS)
    name = _names(tables, labels, read["textId"])
    domain = _domains(read, name)
    is_range = (read["eventType"] == enums.PUSH_POP_RANGE) | (read["eventType"] == enums.START_END_RANGE)
    one_thread = (read["endGlobalTid"] == NULL) | (read["endGlobalTid"] == read["globalTid"])
    rows = make_rows(
        "api", start=read["start"], end=read["end"], thread=read["globalTid"], name=name, detail=domain
    ).where(is_range & one_thread & (read["end"] != NULL) & (read["globalTid"] != NULL))
    return drop_impossible(rows, "NVTX range", dropped, on_device=False)


def _names(tables: Tables, labels: Labels, text_id: Int64) -> Int64:
    if len(text_id) == 0:
        return text_id
    own = labels.of_texts(tables.texts(NVTX, "text"))
    return np.where(own == ABSENT, labels.of_ids(text_id), own)


def _domains(read: dict[str, Int64], name: Int64) -> Int64:
    """A domain id belongs to its process; its name is the text of the row that created it."""
    if len(name) == 0:
        return name
    process, domain = process_of(read["globalTid"]), read["domainId"]
    created = np.flatnonzero(read["eventType"] == enums.DOMAIN_CREATE)
    row = match(process, domain, process[created], domain[created])
    return np.where(row == NONE, ABSENT, name[created[np.maximum(row, 0)]] if len(created) else ABSENT)
