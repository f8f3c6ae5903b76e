"""Layers and ubatches of other people's traces, from range names that spell them out; otherwise nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
_ANY_WORD: Final = "layer|blk|batch"
LAYER: Final = re.compile(_WORD + r"(?:layers?|blk|decoder_layers?)" + _NUMBER, re.IGNORECASE)
UBATCH: Final = re.compile(_WORD + r"(?:u-?batch|micro[ _-]?batch)" + _NUMBER, re.IGNORECASE)


def places(ranges: Ranges, launches: Launches) -> Places:
    """The layer and ubatch of each row by the innermost range around its launching call that names one."""
    # Arrow sifts: some traces have names by the 100,000.
    sifted = pc.match_substring_regex(ranges.texts, _ANY_WORD, ignore_case=True).fill_null(False)
    rows = np.flatnonzero(sifted.to_numpy(zero_copy_only=False))
    names = dict(zip(rows.tolist(), ranges.texts.take(pa.array(rows)).to_pylist(), strict=True))
    return Places(layer=_numbers(LAYER, names, ranges, launches), ubatch=_numbers(UBATCH, names, ranges, launches))


def _numbers(pattern: re.Pattern[str], names: Mapping[int, str], ranges: Ranges, launches: Launches) -> Int64 | None:
    number = np.full(len(ranges.texts), NULL)
    for code, name in names.items():
        if (match := pattern.search(name)) is not None:
            number[code] = int(match.group(1))
    if (number == NULL).all():
        return None
    number = look_up(number, ranges.name, NULL)
    mine = np.flatnonzero(number != NULL)
    if len(mine) == 0:
        return None
    return look_up(number[mine], launches.gather(innermost(ranges.spans.take(mine), launches.calls)), NULL)
