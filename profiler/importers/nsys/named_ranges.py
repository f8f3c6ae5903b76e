"""Layers and ubatches of other people's traces, from range names that spell them out; otherwise nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profiler.importers.nsys.places import Launches, Places
from profiler.importers.nsys.project import NONE, Spans, innermost
from profiler.importers.nsys.rows import Rows
from profiler.importers.nsys.tables import NULL, Int64

# A number right after the word, and not a count (`n_layers=32`) or a span (`layers 0-31`).
_WORD: Final = r"(?:^|[^a-z_0-9])"
_NUMBER: Final = r"[ ._:=#\[(-]{0,2}([0-9]{1,4})(?:$|[^0-9.-]|\.[a-z_])"
LAYER: Final = re.compile(_WORD + r"(?:layers?|blk|decoder_layers?)" + _NUMBER, re.IGNORECASE)
UBATCH: Final = re.compile(_WORD + r"(?:u-?batch|micro[ _-]?batch)" + _NUMBER, re.IGNORECASE)


def places(ranges: Rows, texts: Sequence[str], rows: Rows, launches: Launches) -> Places:
    """The layer and ubatch of each row by the innermost range around its launching call that names one."""
    found = Places.unknown(len(rows))
    used, code = np.unique(ranges["name"], return_inverse=True)
    names = [texts[number] if number >= 0 else "" for number in used.tolist()]
    found.layer = _numbers(LAYER, names, code, ranges, launches)
    found.ubatch = _numbers(UBATCH, names, code, ranges, launches)
    return found


def _numbers(pattern: re.Pattern[str], names: Sequence[str], code: Int64, ranges: Rows, launches: Launches) -> Int64:
    number = _number_in(pattern, names)
    mine = np.flatnonzero(number[code] != NULL) if len(code) else np.empty(0, np.int64)
    if len(mine) == 0:
        return np.full(len(launches.call), NULL)
    spans = Spans(ranges["thread"][mine], ranges["start"][mine], ranges["end"][mine])
    at = launches.gather(innermost(spans, launches.calls))
    return np.where(at == NONE, NULL, number[code[mine[np.maximum(at, 0)]]])


def _number_in(pattern: re.Pattern[str], names: Sequence[str]) -> Int64:
    """The number in each name, NULL where there is none. Arrow sifts: most traces have names by the 100,000."""
    found = np.full(len(names), NULL)
    sifted = pc.match_substring_regex(pa.array(names, pa.string()), pattern.pattern, ignore_case=True)
    for index in np.flatnonzero(sifted.to_numpy(zero_copy_only=False)).tolist():
        if (match := pattern.search(names[index])) is not None:
            found[index] = int(match.group(1))
    return found
