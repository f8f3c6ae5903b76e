"""Device work that a file holds twice, as one that a trace was appended to again."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_SAME: Final = ("process", "device", "stream", "kind", "name", "t_start", "t_end", "bytes", "correlation_id")


def remark_twice(events: pa.Table) -> list[str]:
    """A sentence where rows of one device agree in everything, their call included: they count as often as they come.

    events: an EVENTS table of one import. Rows without a call (migrations of pages) may well agree.
    """
    launched = pc.and_(pc.is_valid(events["device"]), pc.is_valid(events["correlation_id"]))
    rows = np.flatnonzero(launched.to_numpy())
    start = events["t_start"].to_numpy()[rows]
    order = np.argsort(start, kind="stable")  # rows mostly come in order, which makes it quick
    agrees = np.diff(start[order]) == 0
    if not agrees.any():
        return []
    alike = events.select(list(_SAME)).take(pa.array(rows[order[np.append(agrees, False) | np.append(False, agrees)]]))
    counts = alike.combine_chunks().group_by(list(_SAME)).aggregate([([], "count_all")])["count_all"]
    if not (n_more := pc.sum(counts).as_py() - len(counts)):
        return []
    return [
        f"{n_more:,} device rows repeat another one in times, stream and call, and count as often as they come: was a "
        "trace written into this file twice?"
    ]
