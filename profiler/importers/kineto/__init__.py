"""Reads torch.profiler's Chrome-format JSON (Kineto), plain or gzip, of any age, NVIDIA or AMD.

Kept: kernels, copies, memsets, device-side syncs and host calls, each with its stream, correlation and exact
integer nanoseconds, to the last step. What is left out is counted. `docs/importing.md` lists what the format
cannot say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from executor.errors import HprofError
from executor.units import format_count
from profiler import collection
from profiler.importers.base import Imported, ImportOptions, TraceFormat
from profiler.importers.device_traces import created_utc, mark_collectives, remark_collectives, remark_duplicate_rows
from profiler.importers.dropping import remark_overlaps
from profiler.importers.hprof_passes import (
    has_explicit_copies,
    remark_undirected_copies,
    remark_unrecorded_copies,
    unrecorded_copies,
    with_bytes_h2d,
)
from profiler.importers.kineto.host_calls import HostCalls, number_processes
from profiler.importers.kineto.rows import OPERATOR_ROLES, ROLES, InexactError, RowCollector
from profiler.importers.kineto.segments import segment
from profiler.importers.kineto.stream import EventStream, open_source
from profiler.importers.kineto.tables import UNKNOWN_DIRECTION, credible_rows, events_table, without_far_times
from profiler.importers.unnamed import segment_unnamed

_KEYS: Final = (b'"traceEvents"', b'"deviceProperties"', b'"schemaVersion"', b'"baseTimeNanoseconds"', b'"ph"')


def detect(_path: Path, head: bytes) -> bool:
    """Whether this is JSON with a key that Chrome's trace format or Kineto has."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return text.startswith((b"{", b"[")) and any(key in text for key in _KEYS)


def read(path: Path, options: ImportOptions) -> Imported:
    """Read one trace. Raises HprofError where it is no trace, or unpacks to more than a trace can be."""
    # Parsed JSON holds no cycles, and the collector's walks over it cost more than the parsing.
    with open_source(path) as source, collection.paused():
        stream, collector = EventStream(source), RowCollector(roles=OPERATOR_ROLES if options.host_work else ROLES)
        for events in stream:
            try:
                collector.add(events)
            except InexactError:
                stream.text_times = True
                collector.add(stream.reparsed())
    dropped = collector.dropped + stream.dropped
    if collector.n_events == 0 and (stream.is_bare_array or stream.lost or +dropped):
        raise HprofError(
            f'{path} holds JSON, but no trace event (an object with a "ph"); give what torch.profiler\'s '
            "export_chrome_trace wrote."
        )
    rows, process_names = number_processes(without_far_times(collector.table(), dropped))
    credible = credible_rows(rows, dropped)
    rows, launches = credible.rows, credible.launches
    segments = segment(rows, launches)
    events, n_collectives = mark_collectives(events_table(rows, launches, segments.context, dropped))
    events, undecided = segment_unnamed(events)
    n_undirected = 0 if has_explicit_copies(events) else dropped[UNKNOWN_DIRECTION]
    n_unrecorded = 0 if n_undirected else unrecorded_copies(events)
    passes = with_bytes_h2d(segments.passes, events, is_unrecorded=n_undirected > 0)
    tables = {"events": events, "passes": passes, "ubatches": segments.ubatches}
    tables = {name: table for name, table in tables.items() if name == "events" or table.num_rows}
    fields = manifest_fields(stream.metadata, rows, process_names)
    if segments.default_arm is not None:
        fields["extra"]["steps_are_cut_on_device"] = True
    if options.host_work:
        fields["extra"]["unrecorded_devices"] = True
    if n_unrecorded or n_undirected:
        fields["extra"]["unrecorded_copies"] = n_unrecorded + n_undirected
    return Imported(
        source="kineto",
        tables=tables,
        manifest_fields=fields,
        cannot_say=[
            *cannot_say(tables, collector.not_read),
            *remark_unrecorded_copies(n_unrecorded),
            *remark_undirected_copies(n_undirected),
            *credible.unanswered,
            *undecided,
        ],
        dropped=+dropped,
        warnings=[
            *remark_loss(stream.lost),
            *warnings(events, collector.not_read),
            *remark_shared_ids(launches),
            *remark_overlaps(credible.n_overlapping),
            *remark_collectives(n_collectives),
            *remark_duplicate_rows(events),
        ],
        faults=remark_loss(stream.lost) if stream.lacks_events else [],
        default_arm=segments.default_arm,
        is_cut_off=stream.lacks_events,
    )


def sample() -> bytes:
    """One kernel."""
    return (
        b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 4, '
        b'"args": {"device": 0, "stream": 7, "correlation": 1}}]}'
    )


FORMAT: Final = TraceFormat(
    detect,
    read,
    sample,
    endings=tuple(f"{before}.json{after}" for before in ("", ".trace", ".pt.trace") for after in ("", ".gz")),
    reads_gzip=True,
)

_MAX_TEXT: Final = 200
_MACHINE_KEYS: Final = ("cuda_driver_version", "cuda_runtime_version", "cupti_version", "hip_runtime_version")
_EXTRA_KEYS: Final = ("schemaVersion", "traceName", "trace_id", "displayTimeUnit", "baseTimeNanoseconds")
# how the categories of devices begin whose rows are not read
_OTHER_DEVICES: Final = {
    "mtia": "MTIA devices",
    "hpu": "Gaudi devices (HPU)",
    "privateuse1": "devices of a PyTorch backend that is not its own (PrivateUse1)",
}
_RANK_KEYS: Final = ("rank", "world_size", "backend")


def manifest_fields(metadata: Mapping[str, object], rows: pa.Table, process_names: Mapping[str, str]) -> dict[str, Any]:
    """`machine`, `created_utc` and `extra` of the manifest: the keys around the array of events, and its first time.

    process_names: number -> what the trace calls the process, where that is more than the number.
    """
    gpus = [_gpu(entry) for entry in _list(metadata.get("deviceProperties")) if isinstance(entry, dict)]
    distributed = metadata.get("distributedInfo")
    machine = {
        **({"gpu": gpus[0].get("name"), "gpus": gpus} if gpus else {}),
        **_picked(metadata, _MACHINE_KEYS),
        **(_picked(distributed, _RANK_KEYS) if isinstance(distributed, dict) else {}),
    }
    return {
        "machine": machine,
        "extra": {"kineto": _picked(metadata, _EXTRA_KEYS), **({"processes": process_names} if process_names else {})},
        "created_utc": _created(metadata.get("baseTimeNanoseconds"), rows),
    }


def cannot_say(tables: Mapping[str, pa.Table], not_read: Counter[str]) -> list[str]:
    """A sentence for each thing that this trace does not tell."""
    events, passes = tables["events"], tables.get("passes")
    said = [
        "torch.profiler does not record device memory in use, unified-memory migrations or the link's speed.",
    ]
    if passes is None:
        has_layers = events["layer"].null_count < events.num_rows  # hprof.range names them without a pass
        what = "passes or ubatches" if has_layers else "passes, ubatches or layers"
        said.append(f"No annotation names {what} (hprof's ranges or ProfilerStep).")
    elif passes["n_ubatch"].null_count == passes.num_rows:
        said.append("Passes are the ProfilerStep ranges; their ubatch size, prompt and depth are not said.")
    if passes is None or passes["ttft_ns"].null_count == passes.num_rows:
        said.append("TTFT, prefill and decode times are not in the trace.")
    if events.num_rows and events["tensor"].null_count == events.num_rows:
        said.append("Copies do not name the tensor that they move.")
    if _copies_without(events, "source_memory"):
        said.append("Some host to device copies do not say whether their source was pinned (ROCm never does).")
    if _copies_without(events, "bytes"):
        said.append("Some copies do not say how many bytes they moved.")
    if events.num_rows and not _has_kind(events, "api"):
        said.append("Host calls were not recorded, so it is unknown when copies were issued and by whom.")
    if _whole_microseconds(events):
        said.append("The trace's clock has whole microseconds: shorter intervals may read as 0 or 1000 ns.")
    if not_read:
        counts = ", ".join(f"{n:,} {category}" for category, n in not_read.most_common(8))
        said.append(f"Events that are neither GPU work nor host calls were not read: {counts}.")
    return said


def remark_loss(lost: str | None) -> list[str]:
    """What the end of the file lacks, if anything."""
    return [f"The trace is incomplete: {lost}."] if lost else []


def warnings(events: pa.Table, seen: Counter[str]) -> list[str]:
    """Sentences to show beside the figures. seen: the categories of events that were not read."""
    found = []
    if not any(_has_kind(events, kind) for kind in ("compute", "h2d", "d2h", "d2d", "cpu_compute")):
        other = next((name for start, name in _OTHER_DEVICES.items() if any(c.startswith(start) for c in seen)), None)
        found.append(
            f"The trace is of {other}, whose work hprof does not read: it has no kernel or copy of a GPU."
            if other
            else "The trace has no GPU work; was ProfilerActivity.CUDA (or XPU) on while it was recorded?"
        )
    return found


def remark_shared_ids(launches: HostCalls) -> list[str]:
    """What a reader must know where several processes gave their calls the same ids."""
    found = []
    if launches.n_paired:
        found.append(
            f"{_carry(launches.n_paired)} an id that calls of several processes have: traces were "
            "merged without labels, and hprof tells the processes apart by the order of the file."
        )
    if launches.n_unpaired:
        found.append(
            f"{_carry(launches.n_unpaired)} an id that calls of several processes have, and could "
            "belong to any of them: import each process's trace by itself."
        )
    return found


def _carry(n_rows: int) -> str:
    return f"{format_count(n_rows, 'device row')} {'carries' if n_rows == 1 else 'carry'}"


def _gpu(entry: Mapping[str, object]) -> dict[str, Any]:
    keys = ("id", "name", "totalGlobalMem", "computeMajor", "computeMinor", "numSms")
    return _picked(entry, keys)


def _picked(mapping: Mapping[str, object], keys: tuple[str, ...]) -> dict[str, Any]:
    """Only plain numbers and short texts: the rest of the file is somebody else's."""
    values = {key: mapping[key] for key in keys if isinstance(mapping.get(key), str | int | float)}
    return {key: v[:_MAX_TEXT] if isinstance(v, str) else v for key, v in values.items()}


def _list(value: object) -> list[Any]:
    return value[:64] if isinstance(value, list) else []


def _created(base_ns: object, rows: pa.Table) -> str:
    """Times count from `baseTimeNanoseconds`, months before the recording, or from 1970 in files without that key."""
    if not rows.num_rows or type(base_ns) not in (int, type(None)):
        return ""
    return created_utc((base_ns or 0) + pc.min(rows["t_start"]).as_py())


def _has_kind(events: pa.Table, kind: str) -> bool:
    return bool(pc.any(pc.equal(_label(events, "kind"), kind)).as_py())


def _copies_without(events: pa.Table, column: str) -> bool:
    is_copy = pc.equal(_label(events, "kind"), "h2d")
    return bool(pc.any(pc.and_(is_copy, pc.is_null(events[column].combine_chunks()))).as_py())


def _whole_microseconds(events: pa.Table) -> bool:
    if events.num_rows < 100:
        return False
    return not any((events[name].to_numpy() % 1000).any() for name in ("t_start", "t_end"))


def _label(events: pa.Table, column: str) -> pa.Array:
    return events[column].combine_chunks().cast(pa.string())
