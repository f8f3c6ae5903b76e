"""NVTX ranges of an export: when, on which thread, what they are called, and in whose domain."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from profiler.arithmetic.joins import match
from profiler.importers.nsys import enums
from profiler.importers.nsys.device_rows import process_of
from profiler.importers.nsys.dropping import drop, impossible_times
from profiler.importers.nsys.project import Spans
from profiler.importers.nsys.rows import ABSENT, Mask, look_up
from profiler.importers.nsys.strings import Labels
from profiler.importers.nsys.tables import NULL, Int64, Tables, check_aligned

NVTX: Final = "NVTX_EVENTS"
COLUMNS: Final = ("start", "end", "eventType", "globalTid", "endGlobalTid", "textId", "domainId")
TEXT: Final = "text"


@dataclass(frozen=True, slots=True)
class Ranges:
    """Finished push/pop and start/end ranges that began and ended on one thread."""

    spans: Spans  # group: globalTid
    name: Int64  # codes of `texts`, ABSENT for none
    domain: Int64  # codes of `texts`, ABSENT for the default domain
    texts: pa.StringArray

    def __len__(self) -> int:
        return len(self.spans)

    def where(self, mask: Mask) -> Ranges:
        """Only the ranges that `mask` keeps."""
        rows = np.flatnonzero(mask)
        return Ranges(self.spans.take(rows), self.name[rows], self.domain[rows], self.texts)

    def shifted(self, by_ns: int) -> Ranges:
        """The same ranges, later."""
        spans = Spans(self.spans.group, self.spans.start + by_ns, self.spans.end + by_ns)
        return Ranges(spans, self.name, self.domain, self.texts)


def read_ranges(tables: Tables, labels: Labels, dropped: Counter[str]) -> Ranges:
    """All ranges that can be projected. One that was still open when the recording stopped can own nothing."""
    read = tables.ints(NVTX, COLUMNS)
    name, texts = _names(tables, labels, read["textId"])
    domain = _domains(read, name)
    is_range = (read["eventType"] == enums.PUSH_POP_RANGE) | (read["eventType"] == enums.START_END_RANGE)
    one_thread = (read["endGlobalTid"] == NULL) | (read["endGlobalTid"] == read["globalTid"])
    keep = is_range & one_thread & (read["end"] != NULL) & (read["globalTid"] != NULL)
    spans = Spans(read["globalTid"], read["start"], read["end"])
    ranges = Ranges(spans, name, domain, texts).where(keep)
    return drop(ranges, "NVTX range", impossible_times(ranges.spans.start, ranges.spans.end, on_device=False), dropped)


def _names(tables: Tables, labels: Labels, text_id: Int64) -> tuple[Int64, pa.StringArray]:
    """Names are texts of their own or ids of StringIds; a trace can have one a row, so they stay in arrow."""
    own = tables.texts(NVTX, TEXT)
    check_aligned(NVTX, text_id, own)
    encoded = own.dictionary_encode().unify_dictionaries().combine_chunks()
    codes: Int64 = encoded.indices.fill_null(ABSENT).to_numpy(zero_copy_only=False).astype(np.int64)
    by_id, strings = labels.values_of_ids(text_id)
    n_own = len(encoded.dictionary)
    name = np.where((codes == ABSENT) & (by_id != ABSENT), by_id + n_own, codes)
    return name, pa.concat_arrays([encoded.dictionary, strings])


def _domains(read: dict[str, Int64], name: Int64) -> Int64:
    """A domain id belongs to its process; its name is the text of the row that created it."""
    process, domain = process_of(read["globalTid"]), read["domainId"]
    created = np.flatnonzero(read["eventType"] == enums.DOMAIN_CREATE)
    row = match(process, domain, process[created], domain[created])
    return look_up(name[created], row, ABSENT)
