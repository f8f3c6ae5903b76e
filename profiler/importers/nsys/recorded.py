"""Reads the rows of an export: device work, calls of the host, synchronisations and NVTX ranges.

One function a table makes its rows; `read_trace_rows` puts them on one clock (host calls first, then device work,
then waits), joins device work to the calls that launched it, and counts what is left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from profiler.arithmetic.groups import match
from profiler.arithmetic.intervals import Int64
from profiler.importers.absent import absent, from_arrow, is_absent, is_known, known_where, taken
from profiler.importers.dropping import (
    FAR_FROM_LAUNCH,
    OVERRUNS,
    Mask,
    far_from_launch,
    far_times,
    kept_rows,
    overrunning,
    time_limits,
)
from profiler.importers.nsys.project import GroupedSpans, LaunchingCalls
from profiler.importers.nsys.rows import (
    EventRows,
    StreamLines,
    TextCodes,
    api_name,
    concatenate,
    distinct_streams,
    drop,
    impossible,
    kind_code,
    make_rows,
)
from profiler.importers.nsys.tables import (
    COPY_KINDS,
    DOMAIN_CREATE,
    HOST_TO_HOST,
    MEMORY_KINDS,
    NO_STREAM,
    PUSH_POP_RANGE,
    START_END_RANGE,
    SYNC_KINDS,
    TID_BITS,
    ExportTables,
    check_aligned,
)
from profiler.schema import MEMORIES


@dataclass(frozen=True, slots=True)
class TraceRows:
    """Everything that happened. Times count from `origin_ns`, the export's time of the first row."""

    rows: EventRows
    n_calls: int  # rows[:n_calls] are CUDA calls
    n_device: int  # the next n_device rows ran on devices; the rest are synchronisations
    ranges: NvtxRanges
    labels: TextCodes
    launches: LaunchingCalls
    streams: StreamLines  # of rows[n_calls:]
    origin_ns: int
    has_work: Mask  # of each call: whether the export has device work of it, also work that was left out
    n_overlapping: int  # device rows that overlap on streams that are not serial, and stay

    @property
    def device_slice(self) -> slice:
        """Where the device work lies in `rows`."""
        return slice(self.n_calls, self.n_calls + self.n_device)

    @property
    def device_rows(self) -> EventRows:
        """Kernels, memsets, graph launches and copies."""
        return self.rows.part(self.device_slice)


def read_trace_rows(tables: ExportTables, dropped: Counter[str]) -> TraceRows:
    """Read and clean every row; what is left out is counted in `dropped`."""
    _expect(tables)
    labels = TextCodes(tables)
    calls = api_calls(tables, labels, dropped)
    readers = (kernels, memsets, graph_launches, copies)
    device = [read(tables, labels, dropped) for read in readers]
    syncs = synchronisations(tables, labels, dropped)
    ranges = read_ranges(tables, labels, dropped)
    starts = np.concatenate([part["start"] for part in (calls, *device, syncs)])
    limits = time_limits(starts if len(starts) else ranges.spans.start)
    calls, *device, syncs = (
        drop(part, "row", far_times(part["start"], limits), dropped) for part in (calls, *device, syncs)
    )
    ranges = drop(ranges, "NVTX range", far_times(ranges.spans.start, limits), dropped)
    rows = concatenate([calls, *device, syncs])
    call = np.concatenate([np.arange(len(calls)), _calls_of(rows.part(slice(len(calls), None)), calls)])
    device_slice = slice(len(calls), len(rows) - len(syncs))
    has_work = np.zeros(len(calls), np.bool_)
    has_work[call[device_slice][is_known(call[device_slice])]] = True
    streams = distinct_streams(rows.part(slice(len(calls), None)))
    kept, n_overlapping = _credible(rows.part(device_slice), streams, call[device_slice], calls, labels, dropped)
    if not kept.all():
        every = np.ones(len(rows), np.bool_)
        every[device_slice] = kept
        rows, call = rows.where(every), call[every]
        streams = distinct_streams(rows.part(slice(len(calls), None)))
    first = rows["start"] if len(rows) else ranges.spans.start
    origin_ns = int(first.min()) if len(first) else 0
    spans = GroupedSpans(calls["thread"], calls["start"] - origin_ns, calls["end"] - origin_ns)
    return TraceRows(
        rows=rows.shifted(-origin_ns),
        n_calls=len(calls),
        n_device=int(np.count_nonzero(kept)),
        ranges=ranges.shifted(-origin_ns),
        labels=labels,
        launches=LaunchingCalls(spans, call),
        streams=streams,
        origin_ns=origin_ns,
        has_work=has_work,
        n_overlapping=n_overlapping,
    )


def _expect(tables: ExportTables) -> None:
    """The large tables, in the order in which they are asked for."""
    tables.expect(RUNTIME, CALL_COLUMNS)
    tables.expect(KERNEL, kernel_columns(tables))
    tables.expect(MEMCPY, COPY_COLUMNS)
    tables.expect(NVTX, NVTX_COLUMNS)
    tables.expect(NVTX, [NVTX_TEXT])


def _calls_of(rows: EventRows, calls: EventRows) -> Int64:
    """For each row the call that launched it, if any."""
    process = rows["process"]
    if len(calls) and (calls["process"] == calls["process"][0]).all():
        # Hand-made exports lack globalPid; with one process there is nothing to confuse.
        process = np.where(is_absent(process), calls["process"][0], process)
    return _matched(process, rows["correlation"], calls["process"], calls["correlation"])


def _matched(scope: Int64, number: Int64, other_scope: Int64, other_number: Int64) -> Int64:
    """As `match`, with no value where there is no match."""
    row = match(scope, number, other_scope, other_number)
    return known_where(row >= 0, row)


def _credible(
    device: EventRows, streams: StreamLines, call: Int64, calls: EventRows, labels: TextCodes, dropped: Counter[str]
) -> tuple[Mask, int]:
    """The device rows whose times agree with their launches and streams, and how many overlap on no serial stream.

    streams: of the device rows, and of others after them.
    """
    is_far = np.zeros(len(device), np.bool_)
    launched = np.flatnonzero(is_known(call))
    is_far[launched] = far_from_launch(device["start"][launched], calls["start"][call[launched]])
    # Migrations and graphs that were recorded as a whole are no work in a stream's order.
    is_apart = is_far | is_absent(device["stream"])
    for detail in ("uvm", "graph"):
        is_apart |= device["detail"] == labels.code(detail)
    stream = known_where(~is_apart, streams.line[: len(device)])
    overruns, n_overlapping = overrunning(stream, device["start"], device["end"], device["correlation"])
    return kept_rows("device row", {FAR_FROM_LAUNCH: is_far, OVERRUNS: overruns}, dropped), n_overlapping


KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"

_COMMON: Final = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
COPY_COLUMNS: Final = (*_COMMON, "bytes", "copyKind", "srcKind")
_MAX_DEVICE: Final = 4095


def kernels(tables: ExportTables, labels: TextCodes, dropped: Counter[str]) -> EventRows:
    """Kernels, with their demangled names (short ones where the export has no others)."""
    columns = kernel_columns(tables)
    read = tables.ints(KERNEL, columns)
    rows = make_rows("compute", **_common(read), name=labels.of_ids(read[columns[-1]]))
    return _possible_on_device(rows, "kernel", dropped)


def kernel_columns(tables: ExportTables) -> tuple[str, ...]:
    """What is read of kernels, the ids of their names last."""
    has_long = "demangledName" in tables.columns(KERNEL)
    return (*_COMMON, "demangledName" if has_long else "shortName")


def memsets(tables: ExportTables, labels: TextCodes, dropped: Counter[str]) -> EventRows:
    """Memsets: compute rows with detail "memset", as the device's engines are busy with them."""
    read = tables.ints(MEMSET, [*_COMMON, "bytes"])
    memset = labels.code("memset")
    rows = make_rows("compute", **_common(read), bytes=read["bytes"], name=memset, detail=memset)
    return _possible_on_device(rows, "memset", dropped)


def graph_launches(tables: ExportTables, labels: TextCodes, dropped: Counter[str]) -> EventRows:
    """CUDA graphs traced as a whole: one row a launch, and none for the work inside."""
    read = tables.ints(GRAPH, _COMMON)
    rows = make_rows("compute", **_common(read), name=labels.code("CUDA graph"), detail=labels.code("graph"))
    return _possible_on_device(rows, "graph launch", dropped)


def copies(tables: ExportTables, labels: TextCodes, dropped: Counter[str]) -> EventRows:
    """Copies that touch a device. Unified-memory migrations keep apart from the others by detail "uvm"."""
    read = tables.ints(MEMCPY, COPY_COLUMNS)
    oper = np.where((read["copyKind"] < 0) | (read["copyKind"] > max(COPY_KINDS)), 0, read["copyKind"])
    rows = make_rows(
        _by_oper({oper: kind_code(kind) for oper, (kind, _, _) in COPY_KINDS.items()})[oper],
        **_common(read),
        bytes=read["bytes"],
        name=_by_oper({oper: labels.code(name) for oper, (_, name, _) in COPY_KINDS.items()})[oper],
        detail=_by_oper({oper: labels.code(detail) for oper, (_, _, detail) in COPY_KINDS.items() if detail})[oper],
        memory=_memory_codes(read["srcKind"]),
    )
    between_hosts = oper == HOST_TO_HOST
    unknown = is_absent(rows["kind"]) & ~between_hosts
    kinds = {"unknown copy kind": unknown, "from host to host": between_hosts}
    return _possible_on_device(drop(rows, "copy", kinds, dropped), "copy", dropped)


def _common(read: dict[str, Int64]) -> dict[str, Int64]:
    return {
        "start": read["start"],
        "end": read["end"],
        "device": read["deviceId"],
        "context": read["contextId"],
        "stream": read["streamId"],
        "correlation": _correlation(read),
        "process": process_of(read["globalPid"]),
    }


def _correlation(read: dict[str, Int64]) -> Int64:
    """0 is CUPTI's word for no call."""
    return known_where(read["correlationId"] > 0, read["correlationId"])


def process_of(global_id: Int64) -> Int64:
    """<hw:8><vm:8><pid:24> of a globalPid or globalTid, where there is one."""
    return known_where(is_known(global_id), global_id >> TID_BITS)


def _possible_on_device(rows: EventRows, what: str, dropped: Counter[str]) -> EventRows:
    device, size = rows["device"], rows["bytes"]
    reasons = impossible(rows["start"], rows["end"], on_device=True) | {
        "no such device number": (device < 0) | (device > _MAX_DEVICE),
        "negative size": (size < 0) & is_known(size),
    }
    return drop(rows, what, reasons, dropped)


def _by_oper(values: dict[int, int]) -> Int64:
    table = absent(max(COPY_KINDS) + 1)
    table[list(values)] = list(values.values())
    return table


def _memory_codes(kinds: Int64) -> Int64:
    unknown = max(MEMORY_KINDS) + 1
    table = absent(unknown + 1)
    for number, memory in MEMORY_KINDS.items():
        table[number] = MEMORIES.index(memory)
    return table[np.where((kinds < 0) | (kinds > unknown), unknown, kinds)]


RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCHRONIZATION: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
CALL_COLUMNS: Final = ("start", "end", "globalTid", "correlationId", "nameId")


def api_calls(tables: ExportTables, labels: TextCodes, dropped: Counter[str]) -> EventRows:
    """CUDA runtime and driver calls."""
    read = tables.ints(RUNTIME, CALL_COLUMNS)
    rows = make_rows(
        "api",
        start=read["start"],
        end=read["end"],
        process=process_of(read["globalTid"]),
        thread=read["globalTid"],
        correlation=_correlation(read),
        name=labels.of_ids(read["nameId"], api_name),
    )
    return _with_possible_times(rows, "API call", dropped)


def synchronisations(tables: ExportTables, labels: TextCodes, dropped: Counter[str]) -> EventRows:
    """Waits of the host, and stream-wait-event operations."""
    columns = ["start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "syncType"]
    read = tables.ints(SYNCHRONIZATION, columns)
    names = np.array([labels.code(SYNC_KINDS.get(number, "synchronize")) for number in range(5)])
    sync_type = read["syncType"]
    rows = make_rows(
        "sync",
        start=read["start"],
        end=read["end"],
        device=read["deviceId"],
        context=read["contextId"],
        stream=_without_none(read["streamId"]),
        process=process_of(read["globalPid"]),
        correlation=_correlation(read),
        name=names[np.where((sync_type < 0) | (sync_type > 4), 0, sync_type)] if len(sync_type) else absent(0),
    )
    return _with_possible_times(rows, "synchronisation", dropped)


def _without_none(stream: Int64) -> Int64:
    return known_where(stream != NO_STREAM, stream)


def _with_possible_times(rows: EventRows, what: str, dropped: Counter[str]) -> EventRows:
    return drop(rows, what, impossible(rows["start"], rows["end"], on_device=False), dropped)


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

    def where(self, mask: Mask) -> NvtxRanges:
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
    return taken(name[created], _matched(process, domain, process[created], domain[created]))
