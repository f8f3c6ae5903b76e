"""Layers and ubatches of other people's traces, from range names that spell them out; otherwise nothing."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profiler.importers.nsys.nvtx import Ranges
from profiler.importers.nsys.places import Launches, Places
from profiler.importers.nsys.project import innermost
from profiler.importers.nsys.rows import look_up
from profiler.importers.nsys.tables import NULL, Int64

# A number right after the word, and not a count (`n_layers=32`) or a span (`layers 0-31`).
_WORD: Final = r"(?:^|[^a-z_0-9])"
_NUMBER: Final = r"[ ._:=#\[(-]{0,2}([0-9]{1,4})(?:$|[^0-9.-]|\.[a-z_])"
LAYER: Final = re.compile(_WORD + r"(?:layers?|blk|decoder_layers?)" + _NUMBER, re.IGNORECASE)
UBATCH: Final = re.compile(_WORD + r"(?:u-?batch|micro[ _-]?batch)" + _NUMBER, re.IGNORECASE)


def places(ranges: Ranges, launches: Launches) -> Places:
    """The layer and ubatch of each row by the innermost range around its launching call that names one."""
    return Places(layer=_numbers(LAYER, ranges, launches), ubatch=_numbers(UBATCH, ranges, launches))


def _numbers(pattern: re.Pattern[str], ranges: Ranges, launches: Launches) -> Int64 | None:
    number = look_up(_number_in(pattern, ranges.texts), ranges.name, NULL)
    mine = np.flatnonzero(number != NULL)
    if len(mine) == 0:
        return None
    return look_up(number[mine], launches.gather(innermost(ranges.spans.take(mine), launches.calls)), NULL)


def _number_in(pattern: re.Pattern[str], names: pa.StringArray) -> Int64:
    """The number in each name, NULL where there is none. Arrow sifts: some traces have names by the 100,000."""
    found = np.full(len(names), NULL)
    sifted = pc.match_substring_regex(names, pattern.pattern, ignore_case=True).fill_null(False)
    rows = np.flatnonzero(sifted.to_numpy(zero_copy_only=False))
    for row, name in zip(rows.tolist(), names.take(pa.array(rows)).to_pylist(), strict=True):
        if (match := pattern.search(name)) is not None:
            found[row] = int(match.group(1))
    return found
