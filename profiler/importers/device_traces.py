"""What the importers of device traces (Nsight Systems, torch.profiler) share, whatever the format.

Collectives that wait instead of compute, rows that a file holds twice, launches whose work is missing, and when the
trace was recorded.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from executor.arrays import Flags, Int64
from executor.units import format_count
from profiler.arithmetic.joins import distinct
from profiler.schema import COLLECTIVE, EVENTS

_COLLECTIVE_NAME: Final = r"^(?:void )?(?:nccl|rccl|msccl)"


def mark_collectives(events: pa.Table) -> tuple[pa.Table, int]:
    """Give detail "collective" to collectives on streams that run nothing else; gives the table and their number.

    There they run beside the compute and count as none. On a stream that also runs other kernels a collective is a step
    of that stream like any other, and counts. events: an EVENTS table of one import.
    """
    names = events["name"].combine_chunks()
    is_collective = pc.match_substring_regex(names.dictionary, _COLLECTIVE_NAME, ignore_case=True)
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


def remark_collectives(n_collectives: int) -> list[str]:
    """What a reader of the figures must know of them."""
    if not n_collectives:
        return []
    return [
        f"{format_count(n_collectives, 'collective kernel')} (NCCL, RCCL) on streams of their own "
        f"{'counts' if n_collectives == 1 else 'count'} as no compute: they mostly wait for other devices."
    ]


def _lanes(events: pa.Table) -> Int64:
    """A number for each (process, device, stream)."""
    lane = np.zeros(events.num_rows, np.int64)
    for values in (events["process"], events["device"], events["stream"].combine_chunks().indices):
        _, code = distinct(pc.fill_null(values.cast(pa.int64()), -1).to_numpy())
        _, lane = distinct(lane * (int(code.max()) + 1) + code)
    return lane


_IDENTITY_COLUMNS: Final = (
    "process",
    "device",
    "stream",
    "kind",
    "name",
    "t_start",
    "t_end",
    "bytes",
    "correlation_id",
)


def remark_duplicate_rows(events: pa.Table) -> list[str]:
    """A sentence where rows of one device agree in everything, their call included: they count as often as they come.

    events: an EVENTS table of one import. Rows without a call (migrations of pages) may well agree.
    """
    launched = pc.and_(pc.is_valid(events["device"]), pc.is_valid(events["correlation_id"]))
    rows = np.flatnonzero(launched.to_numpy())
    ordered = np.sort(events["t_start"].to_numpy()[rows])  # rows mostly come in order, which makes it quick
    at_once = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if len(at_once) == 0:
        return []
    del ordered
    rows = rows[np.isin(events["t_start"].to_numpy()[rows], at_once)]
    alike = events.select(list(_IDENTITY_COLUMNS)).take(pa.array(rows))
    counts = alike.combine_chunks().group_by(list(_IDENTITY_COLUMNS)).aggregate([([], "count_all")])["count_all"]
    if not (n_more := pc.sum(counts).as_py() - len(counts)):
        return []
    return [
        f"{format_count(n_more, 'device row')} {'repeats' if n_more == 1 else 'repeat'} another one in times, stream "
        "and call, and count as often as they come: was a trace written into this file twice?"
    ]


_LAUNCH: Final = re.compile(r"(?:cuda|cu|hip)(?:Launch(?:Cooperative)?Kernel|Memcpy|Memset)")


def unanswered_launches(call_names: Int64, texts: Sequence[str], has_work: Flags) -> list[str]:
    """A sentence where calls that launch kernels, copies or memsets have no device row.

    call_names: a code of `texts` for each call of the host, negative: none. has_work: whether a device row names it.
    Complete traces have none but for launches into a graph that is being recorded.
    """
    by_name = np.array([*(_LAUNCH.match(text) is not None for text in texts), False], np.bool_)
    launches = by_name[np.maximum(call_names, -1)]  # the last place is for no name
    n_launches, n_missing = int(np.count_nonzero(launches)), int(np.count_nonzero(launches & ~has_work))
    if not n_missing:
        return []
    return [
        f"the work of {n_missing:,} of {n_launches:,} launches and copies of the host: no device row carries "
        "their id (the trace was cut there, events were lost, or a CUDA graph recorded them)"
    ]


_FIRST_NS: Final = 1_420_070_400_000_000_000  # 2015: none of the formats is older, so the clock is not one since 1970
_DAY_NS: Final = 86_400_000_000_000  # how far the recording machine's clock may be ahead of ours


def created_utc(since_1970_ns: int | None) -> str:
    """The manifest's `created_utc`, to the second; empty (unknown) for a time before 2015 or in the future."""
    if since_1970_ns is None or not _FIRST_NS <= since_1970_ns <= time.time_ns() + _DAY_NS:
        return ""
    return datetime.fromtimestamp(since_1970_ns // 10**9, UTC).isoformat()
