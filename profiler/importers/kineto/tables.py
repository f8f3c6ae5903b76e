"""Turns Kineto's rows into the `events` table: what each row is, which process it belongs to, what it moved."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from executor.arrays import Flags, Int64
from profiler.arithmetic.groups import group_by
from profiler.importers.absent import absent, from_arrow
from profiler.importers.dropping import (
    DEVICE_WAITS,
    FAR_FROM_LAUNCH,
    OUTLASTS_WAIT,
    OVERRUNS,
    LaunchedRows,
    Waits,
    far_from_launch,
    far_times,
    kept_rows,
    outlasting,
    overrunning,
    time_limits,
)
from profiler.importers.kineto.host_calls import HostCalls
from profiler.importers.kineto.rows import ON_HOST
from profiler.schema import EVENTS

# On Intel GPUs copies are called by their ends, "zeCommandListAppendMemoryCopy(M2D)": M is any host memory, H pinned
# host memory, D the device's; S, memory that both share, says no direction.
_XPU_COPY: Final = re.compile(r"\(([MHDS])2([MHDS])\)$")
_HOST_TO_HOST: Final = "h2h"  # touches no device: counted and left out
_XPU_KINDS: Final = {
    "MD": "h2d",
    "HD": "h2d",
    "DM": "d2h",
    "DH": "d2h",
    "DD": "d2d",
    **dict.fromkeys(("MM", "MH", "HM", "HH"), _HOST_TO_HOST),
}
_XPU_MEMORY: Final = {"M": "pageable", "H": "pinned", "D": "device", "S": "managed"}
# "Memcpy HtoD (Pinned -> Device)"; ROCm says "Memcpy HtoD (Host -> Device)", its older tracer "CopyHostToDevice"
_COPY_NAME: Final = re.compile(r"(?:Memcpy|Copy)\s*(\w+?)\s*(?:\((\w+) -> (\w+)\))?$")
_KIND_OF_WORD: Final[dict[str, str]] = {
    **dict.fromkeys(("htod", "htoa", "hosttodevice", "hosttodevice2d"), "h2d"),
    **dict.fromkeys(("dtoh", "atoh", "devicetohost", "devicetohost2d"), "d2h"),
    **dict.fromkeys(("dtod", "dtoa", "atod", "atoa", "ptop", "devicetodevice", "devicetodevice2d"), "d2d"),
    **dict.fromkeys(("htoh", "hosttohost", "hosttohost2d"), _HOST_TO_HOST),
    "0": _HOST_TO_HOST,  # hipMemcpyKind, where only the host call's arguments tell
    "1": "h2d",
    "2": "d2h",
    "3": "d2d",
}
_MEMORY: Final = {"pinned": "pinned", "pageable": "pageable", "device": "device", "managed": "managed"}
_NO_STREAM: Final = (-1, 2**32 - 1)
UNKNOWN_DIRECTION: Final = "copy: of an unknown direction"


def without_far_times(rows: pa.Table, dropped: Counter[str]) -> pa.Table:
    """The rows within 30 days of the median start."""
    start = rows["t_start"].to_numpy()
    return _kept(rows, kept_rows("row", far_times(start, time_limits(start)), dropped))


@dataclass(frozen=True, slots=True)
class CredibleRows:
    """Rows whose times agree with their launches and with the order of their streams."""

    rows: pa.Table
    launches: HostCalls
    unanswered: list[str]  # a sentence about calls whose work the trace lacks
    n_overlapping: int  # rows that overlap on streams that are not serial, and stay


def credible_rows(rows: pa.Table, dropped: Counter[str]) -> CredibleRows:
    """Without the rows whose times cannot be by `profiler.importers.dropping`; those are counted in `dropped`."""
    launches = HostCalls(rows)
    unanswered = launches.unanswered()
    start, end, device, lane = (from_arrow(rows[name]) for name in ("t_start", "t_end", "device", "lane"))
    is_far = np.zeros(len(start), np.bool_)
    launched = np.flatnonzero(~launches.is_host & launches.found)
    is_far[launched] = far_from_launch(start[launched], launches.launched_at()[launched])
    in_order = np.flatnonzero(_is_serial(rows) & ~is_far & ~np.isin(lane, _NO_STREAM) & (device >= 0))
    stream = absent(len(start))
    if len(in_order):
        where = {"process": from_arrow(launches.process), "device": device, "lane": lane}
        stream[in_order] = group_by({name: values[in_order] for name, values in where.items()}).of_row
    overruns, n_overlapping = overrunning(stream, start, end, from_arrow(rows["correlation"]))
    judged = in_order[launches.found[in_order] & ~overruns[in_order]]
    outlasts = np.zeros(len(start), np.bool_)
    outlasts[judged] = _outlasting(rows, launches, stream[judged], judged)
    reasons = {FAR_FROM_LAUNCH: is_far, OVERRUNS: overruns, OUTLASTS_WAIT: outlasts}
    kept = kept_rows("device row", reasons, dropped)
    if not kept.all():
        rows = _kept(rows, kept)
        launches = HostCalls(rows)
    return CredibleRows(rows, launches, unanswered, n_overlapping)


def _outlasting(rows: pa.Table, launches: HostCalls, stream: Int64, judged: Int64) -> Flags:
    """Which of the rows `judged`, on these streams, end after their process had waited for all it had issued."""
    start, end, device, process = (
        from_arrow(values) for values in (rows["t_start"], rows["t_end"], rows["device"], launches.process)
    )
    name = rows["name"].combine_chunks()
    is_wait = np.isin(np.array(name.dictionary.to_pylist(), dtype=object), DEVICE_WAITS)
    calls = np.flatnonzero(np.append(is_wait, False)[name.indices.to_numpy()])
    launched = LaunchedRows(
        stream=stream,
        context=device[judged],
        process=process[judged],
        start=start[judged],
        end=end[judged],
        launched=end[launches.row[judged]],
    )
    return outlasting(launched, Waits(process[calls], start[calls], end[calls]))


def _is_serial(rows: pa.Table) -> Flags:
    role = rows["role"].combine_chunks()
    in_order = np.array([text in ("kernel", "copy", "memset") for text in role.dictionary.to_pylist()], np.bool_)
    found: Flags = in_order[role.indices.to_numpy()]
    return found


def _kept(rows: pa.Table, kept: Flags) -> pa.Table:
    return rows if kept.all() else rows.filter(pa.array(kept)).combine_chunks()


def events_table(rows: pa.Table, launches: HostCalls, context: dict[str, pa.Array], dropped: Counter[str]) -> pa.Table:
    """The rows with a role other than annotation, as EVENTS; `context` has pass_id, ubatch, ... of each row."""
    named = _NamedRows(rows, launches)
    columns: dict[str, Any] = {
        "process": launches.process,
        "device": rows["device"],
        "stream": _streams(rows),
        "kind": named.kind,
        "name": rows["name"],
        "t_start": rows["t_start"],
        "t_end": rows["t_end"],
        "bytes": launches.n_bytes,
        "correlation_id": rows["correlation"],
        "source_memory": named.source_memory,
        "detail": named.detail,
        **context,
    }
    arrays = [
        columns[field.name].cast(field.type) if field.name in columns else pa.nulls(rows.num_rows, field.type)
        for field in EVENTS
    ]
    lost = pc.and_(pc.is_null(named.kind), pc.equal(_text(rows["role"]), "copy"))
    between_hosts = int(np.count_nonzero(named.is_between_hosts))
    dropped["copy: from host to host"] += between_hosts
    dropped[UNKNOWN_DIRECTION] += (pc.sum(lost).as_py() or 0) - between_hosts
    return pa.Table.from_arrays(arrays, schema=EVENTS).filter(pc.is_valid(named.kind))


class _NamedRows:
    """What role, name and arguments say about each row. Combinations are few: each is looked at once."""

    def __init__(self, rows: pa.Table, launches: HostCalls) -> None:
        labels = [rows["role"].combine_chunks(), rows["name"].combine_chunks(), launches.direction]
        sizes = [len(label.dictionary) + 1 for label in labels]  # one more for null
        codes = [pc.fill_null(label.indices, size - 1).to_numpy() for label, size in zip(labels, sizes, strict=True)]
        distinct, of_row = np.unique(np.ravel_multi_index(codes, sizes), return_inverse=True)
        texts = [[*label.dictionary.to_pylist(), ""] for label in labels]
        told = [
            _tell(*(texts[i][code] for i, code in enumerate(combination)))
            for combination in zip(*(part.tolist() for part in np.unravel_index(distinct, sizes)), strict=True)
        ]
        is_between_hosts = np.array([kind == _HOST_TO_HOST for kind, *_ in told], np.bool_)
        self.is_between_hosts: Flags = is_between_hosts[of_row]
        told = [(None if kind == _HOST_TO_HOST else kind, detail, memory) for kind, detail, memory in told]
        self.kind, self.detail, self.source_memory = (
            pa.array([one[i] for one in told], pa.string()).dictionary_encode().take(pa.array(of_row)) for i in range(3)
        )


def _tell(role: str, name: str, direction: str) -> tuple[str | None, str | None, str | None]:
    """(kind, detail, source memory) of a row; kind is null for a copy whose direction nothing tells."""
    if role == "kernel":
        return "compute", None, None
    if role == "memset":
        return "compute", "memset", None
    if role == "sync":
        return "sync", None, None
    if role == "copy":
        return _tell_copy(name, direction)
    return {"api": "api", "operator": "cpu_compute"}.get(role), None, None


def _tell_copy(name: str, direction: str) -> tuple[str | None, str | None, str | None]:
    if (ends := _XPU_COPY.search(name)) is not None:
        return _XPU_KINDS.get(ends[1] + ends[2]), None, _XPU_MEMORY[ends[1]]
    match = _COPY_NAME.search(name)
    word, source = (match[1].lower(), (match[2] or "").lower()) if match else ("", "")
    kind = _KIND_OF_WORD.get(word) or _KIND_OF_WORD.get(direction.lower())
    return kind, "peer" if word == "ptop" else None, _MEMORY.get(source)


def _streams(rows: pa.Table) -> pa.Array:
    """Stream numbers as text, `thread N` for host rows; null where a row is on no stream."""
    lane = rows["lane"].combine_chunks()
    lane = pc.if_else(pc.is_in(lane, pa.array(_NO_STREAM, pa.int64())), None, lane).dictionary_encode()
    number = pa.DictionaryArray.from_arrays(lane.indices, lane.dictionary.cast(pa.string())).cast(pa.string())
    thread = pc.binary_join_element_wise("thread", number, " ")
    return pc.if_else(pc.is_in(_text(rows["role"]), pa.array(ON_HOST)), thread, number).dictionary_encode()


def _text(labels: pa.ChunkedArray) -> pa.Array:
    return labels.combine_chunks().cast(pa.string())
