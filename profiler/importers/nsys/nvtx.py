"""Reads the NVTX ranges of an export: whose they are, when, and what they are named."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from executor.arrays import Flags, Int64
from profiler.importers.absent import from_arrow, is_absent, is_known, taken
from profiler.importers.nsys.project import GroupedSpans
from profiler.importers.nsys.rows import (
    TextCodes,
    drop,
    impossible,
    matched,
    process_of,
)
from profiler.importers.nsys.tables import (
    DOMAIN_CREATE,
    PUSH_POP_RANGE,
    START_END_RANGE,
    ExportTables,
    check_aligned,
)

NVTX: Final = "NVTX_EVENTS"
NVTX_COLUMNS: Final = ("start", "end", "eventType", "globalTid", "endGlobalTid", "textId", "domainId")
NVTX_TEXT: Final = "text"


@dataclass(frozen=True, slots=True)
class NvtxRanges:
    """Finished push/pop and start/end ranges that began and ended on one thread."""

    spans: GroupedSpans  # group: globalTid
    name: Int64  # codes of `texts`, if any
    domain: Int64  # codes of `texts`, none for the default domain
    texts: pa.StringArray

    def __len__(self) -> int:
        return len(self.spans)

    def where(self, mask: Flags) -> NvtxRanges:
        """Only the ranges that `mask` keeps."""
        rows = np.flatnonzero(mask)
        return NvtxRanges(self.spans.take(rows), self.name[rows], self.domain[rows], self.texts)

    def shifted(self, by_ns: int) -> NvtxRanges:
        """The same ranges, later."""
        spans = GroupedSpans(self.spans.group, self.spans.start + by_ns, self.spans.end + by_ns)
        return NvtxRanges(spans, self.name, self.domain, self.texts)


def read_ranges(tables: ExportTables, labels: TextCodes, dropped: Counter[str]) -> NvtxRanges:
    """All ranges that can be projected. One that was still open when the recording stopped can own nothing."""
    read = tables.ints(NVTX, NVTX_COLUMNS)
    name, texts = _names(tables, labels, read["textId"])
    domain = _domains(read, name)
    is_range = (read["eventType"] == PUSH_POP_RANGE) | (read["eventType"] == START_END_RANGE)
    one_thread = is_absent(read["endGlobalTid"]) | (read["endGlobalTid"] == read["globalTid"])
    keep = is_range & one_thread & is_known(read["end"]) & is_known(read["globalTid"])
    spans = GroupedSpans(read["globalTid"], read["start"], read["end"])
    ranges = NvtxRanges(spans, name, domain, texts).where(keep)
    return drop(ranges, "NVTX range", impossible(ranges.spans.start, ranges.spans.end, on_device=False), dropped)


def _names(tables: ExportTables, labels: TextCodes, text_id: Int64) -> tuple[Int64, pa.StringArray]:
    """Names are texts of their own or ids of StringIds; a trace can have one a row, so they stay in arrow."""
    own = tables.texts(NVTX, NVTX_TEXT)
    check_aligned(NVTX, text_id, own)
    encoded = own.dictionary_encode().unify_dictionaries().combine_chunks()
    codes = from_arrow(encoded.indices)
    by_id, strings = labels.values_of_ids(text_id)
    n_own = len(encoded.dictionary)
    name = np.where(is_absent(codes) & is_known(by_id), by_id + n_own, codes)
    return name, pa.concat_arrays([encoded.dictionary, strings])


def _domains(read: dict[str, Int64], name: Int64) -> Int64:
    """A domain id belongs to its process; its name is the text of the row that created it."""
    process, domain = process_of(read["globalTid"]), read["domainId"]
    created = np.flatnonzero(read["eventType"] == DOMAIN_CREATE)
    return taken(name[created], matched(process, domain, process[created], domain[created]))
