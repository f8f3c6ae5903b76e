"""Collectives (NCCL, RCCL): kernels that mostly wait for other devices, and compute nothing while they do."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profiler.arithmetic.joins import Int64, distinct
from profiler.schema import EVENTS

COLLECTIVE: Final = "collective"  # one of schema.UNCOUNTED
_NAME: Final = r"^(?:void )?(?:nccl|rccl|msccl)"


def mark_collectives(events: pa.Table) -> tuple[pa.Table, int]:
    """Give detail "collective" to collectives on streams that run nothing else; gives the table and their number.

    There they run beside the compute and count as none. On a stream that also runs other kernels a collective is a step
    of that stream like any other, and counts. events: an EVENTS table of one import.
    """
    names = events["name"].combine_chunks()
    is_collective = pc.match_substring_regex(names.dictionary, _NAME, ignore_case=True)
    if not pc.any(is_collective).as_py():
        return events, 0
    is_kernel = pc.and_(pc.equal(events["kind"], "compute"), pc.is_null(events["detail"])).to_numpy()
    by_name = pc.fill_null(is_collective.take(names.indices), False).to_numpy(zero_copy_only=False) & is_kernel
    if not by_name.any():
        return events, 0
    lane = _lanes(events)
    is_mixed = np.zeros(int(lane.max()) + 1, np.bool_)
    is_mixed[lane[is_kernel & ~by_name]] = True
    apart = by_name & ~is_mixed[lane]
    if not apart.any():
        return events, 0
    detail = pc.if_else(pa.array(apart), COLLECTIVE, events["detail"].cast(pa.string()))
    position = EVENTS.get_field_index("detail")
    marked = events.set_column(position, EVENTS.field(position), detail.cast(EVENTS.field(position).type))
    return marked, int(np.count_nonzero(apart))


def remark(n_collectives: int) -> list[str]:
    """What a reader of the figures must know of them."""
    if not n_collectives:
        return []
    return [
        f"{n_collectives:,} collective kernels (NCCL, RCCL) on streams of their own count as no compute: "
        "they mostly wait for other devices."
    ]


def _lanes(events: pa.Table) -> Int64:
    """A number for each (process, device, stream)."""
    lane = np.zeros(events.num_rows, np.int64)
    for values in (events["process"], events["device"], events["stream"].combine_chunks().indices):
        _, code = distinct(pc.fill_null(values.cast(pa.int64()), -1).to_numpy())
        _, lane = distinct(lane * (int(code.max()) + 1) + code)
    return lane
