"""What an export says beside its rows: machine, versions, streams and their labels, diagnostics.

Also the sentences for the manifest: what the export could not say, and what a reader of its figures must know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from executor.arrays import Int64
from executor.units import format_count
from profiler.arithmetic.joins import distinct
from profiler.importers.absent import column_of, is_absent, is_known, known_where, taken
from profiler.importers.device_traces import created_utc, unanswered_launches
from profiler.importers.nsys.activities import MEMCPY
from profiler.importers.nsys.project import Places
from profiler.importers.nsys.ranges import HprofRanges
from profiler.importers.nsys.recorded import TraceRows
from profiler.importers.nsys.rows import EventRows, is_explicit_h2d, kind_code
from profiler.importers.nsys.tables import (
    DIAGNOSTIC_ERROR,
    DIAGNOSTIC_WARNING,
    ID_MASK,
    ExportTables,
    first_present,
)

_EXPORT_KEYS: Final = (
    *("EXPORT_SCHEMA_VERSION", "EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_PARAM_LAZY"),
    *("EXPORT_PARAM_TIME_NORMALIZE", "EXPORT_PARAM_TIME_SHIFT", "EXPORT_PARAM_TIMES_TO_EXPORT"),
    *("EXPORT_PARAM_TABLES_TO_EXPORT", "DERIVED_WINDOW_NS"),
)
_CAPTURE_KEYS: Final = (
    *("CUDA_GRAPH_TRACE_OPTIONS:MODE", "CUDA_SKIP_SOME_API_CALLS", "COLLECT_UVM_CPU_PAGE_FAULTS"),
    *("COLLECT_UVM_GPU_PAGE_FAULTS", "COLLECT_GPU_MEMORY_USAGE", "CUDA_TRACE_SCOPE"),
)
_SYSTEM_KEYS: Final = {
    "CpuDescription": "cpu",
    "CpuCores": "threads",
    "OsDescription": "os",
    "NvDriverVersion": "driver",
    "CudaDriverVersion": "cuda_driver_version",
}
_GPU_COLUMNS: Final = (
    *("id", "name", "busLocation", "totalMemory", "memoryBandwidth", "asyncEngines", "smCount", "cuDevice"),
    *("computeMajor", "computeMinor"),
)
_LOST_WORDS: Final = ("dropped", "not all", "lost", "out of memory", "overflow", "incomplete")
# What else nsys can record: where it fails at these, no copy and no kernel is missing. Page migrations are neither.
_OTHER_SUBJECTS: Final = re.compile(
    r"nvtx|opengl|vulkan|direct3d|dx1[12]|openmp|openacc|\bmpi\b|\bucx\b|\bcpu\b|backtrace|sampl|perf event|"
    r"context switch|os runtime|scheduling|unified memory|page fault|network|infiniband|\bnic\b|ftrace|\betw\b|python|"
    r"cublas|cudnn|metric",
    re.IGNORECASE,
)
_MAX_REMARKS: Final = 4
_MAX_REMARK_CHARS: Final = 160
_MAX_MESSAGES: Final = 50
_MAX_MESSAGE_CHARS: Final = 500


def export_facts(tables: ExportTables) -> dict[str, str]:
    """Schema, product and the options of the export. Paths, host and user names are left behind."""
    rows = tables.small(first_present(tables, "META_DATA_EXPORT", "EXPORT_META_DATA"), ["name", "value"])
    return _chosen(rows, _EXPORT_KEYS)


def capture_facts(tables: ExportTables) -> dict[str, str]:
    """How the recording was set up, as far as it changes what the figures mean."""
    return _chosen(tables.small("META_DATA_CAPTURE", ["name", "value"]), _CAPTURE_KEYS)


def machine_facts(tables: ExportTables) -> dict[str, Any]:
    """GPUs (empty: the export does not say), driver, CPU, operating system."""
    system = tables.small("TARGET_INFO_SYSTEM_ENV", ["name", "value"])
    known = {_SYSTEM_KEYS[name]: text for name, text in _chosen(system, tuple(_SYSTEM_KEYS)).items()}
    gpus = [_gpu(row) for row in tables.small("TARGET_INFO_GPU", _GPU_COLUMNS)]
    return known | {"gpus": gpus} if gpus else known


def session_start_utc(tables: ExportTables) -> str:
    """When the session began, as the manifest's `created_utc`; empty where the export does not say."""
    rows = tables.small("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])
    since_1970_ns = rows[0]["utcEpochNs"] if rows else None
    return created_utc(since_1970_ns if type(since_1970_ns) is int else None)


def diagnostics(tables: ExportTables) -> tuple[list[str], list[str]]:
    """What the profiler itself complained of, each text once: (what may have lost copies or kernels, all else)."""
    rows = tables.small("DIAGNOSTIC_EVENT", ["severity", "text"])
    texts = {str(row["text"])[:_MAX_MESSAGE_CHARS]: row["severity"] for row in rows if row["text"] is not None}
    serious = [text for text, level in texts.items() if _loses_work(text, level)]
    mild = [t for t, level in texts.items() if level in (DIAGNOSTIC_WARNING, DIAGNOSTIC_ERROR) and t not in serious]
    return serious[:_MAX_MESSAGES], mild[:_MAX_MESSAGES]


def _loses_work(text: str, level: object) -> bool:
    if _OTHER_SUBJECTS.search(text):
        return False
    return level == DIAGNOSTIC_ERROR or any(word in text.lower() for word in _LOST_WORDS)


def remark_diagnostics(mild: Sequence[str]) -> list[str]:
    """The complaints that are about other things than copies and kernels, as one sentence for `cannot_say`."""
    if not mild:
        return []
    shown = " | ".join(" ".join(text.split())[:_MAX_REMARK_CHARS] for text in mild[:_MAX_REMARKS])
    more = f" (and {len(mild) - _MAX_REMARKS} more)" if len(mild) > _MAX_REMARKS else ""
    return [f"remarks of Nsight Systems itself, none of them about lost copies or kernels: {shown}{more}"]


def _gpu(row: dict[str, Any]) -> dict[str, Any]:
    major, minor = row["computeMajor"], row["computeMinor"]
    return {
        "index": row["cuDevice"],
        "name": _short(row["name"]),
        "bus": _short(row["busLocation"]),
        "memory_mib": row["totalMemory"] >> 20 if isinstance(row["totalMemory"], int) else None,
        "memory_bytes_per_s": row["memoryBandwidth"],
        "copy_engines": row["asyncEngines"],
        "multiprocessors": row["smCount"],
        "compute_capability": None if major is None or minor is None else f"{major}.{minor}",
    }


def _chosen(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> dict[str, str]:
    return {
        row["name"]: text
        for row in rows
        if row["name"] in keys and (text := _short(row["value"])) not in (None, "", "unknown")
    }


def _short(value: object) -> str | None:
    return None if value is None else str(value)[:_MAX_MESSAGE_CHARS]


_KEY: Final = ("processId", "contextId", "streamId")
_CONTEXT: Final = ("TARGET_INFO_CUDA_CONTEXT_INFO", "TARGET_INFO_CUDA_NULL_STREAM")
STREAM_FLAGS: Final = {1: "default", 2: "non-blocking", 3: "null"}
_MAX_LISTED: Final = 256


@dataclass(frozen=True, slots=True)
class StreamLabels:
    """A label for each row that has one, and the (process, device, context, stream) that rows lie on."""

    codes: Int64
    labels: list[str]
    keys: Int64  # (number of streams, 4)


def label_streams(recorded: TraceRows, places: Places) -> StreamLabels:
    """Device streams are their number, with `context/` before it where a process has the number twice.

    Streams on which hprof's own ranges computed or copied are "compute" and "copy", as in its captures; calls
    of the host are on "thread N".
    """
    rows, n_calls = recorded.rows, recorded.n_calls
    threads, thread_line = distinct(rows["thread"][:n_calls])
    others = rows.part(slice(n_calls, len(rows)))
    keys, line = recorded.streams.keys, recorded.streams.line
    codes = np.concatenate([thread_line, known_where(is_known(others["stream"]), line + len(threads))])
    texts = [f"thread {thread & ID_MASK}" for thread in threads.tolist()]
    roles = _roles(others, recorded.labels.texts, places, keys, line)
    texts += [role or text for role, text in zip(roles, _numbers(keys), strict=True)]
    # Two processes may have the same number: one label for both.
    labels = list(dict.fromkeys(texts))
    code_of = {text: code for code, text in enumerate(labels)}
    return StreamLabels(taken(column_of(code_of[text] for text in texts), codes), labels, keys)


def stream_facts(tables: ExportTables, streams: StreamLabels) -> list[dict[str, Any]]:
    """What the export says of the streams in use: name, kind, priority."""
    used = {(process & ID_MASK, context, stream) for process, _, context, stream in streams.keys.tolist()}
    names = {_key(row): row["name"] for row in tables.small("TARGET_INFO_NVTX_CUDA_STREAM", ["name", *_KEY])}
    table = first_present(tables, *_CONTEXT)
    null_column = "nullStreamId" if table == _CONTEXT[0] else "streamId"
    null = {
        (row["processId"], row["contextId"]): row[null_column]
        for row in tables.small(table, ["processId", "contextId", null_column])
    }
    facts = []
    for row in tables.small("TARGET_INFO_CUDA_STREAM", [*_KEY, "priority", "flag"]):
        if (key := _key(row)) in used:
            is_null = row["flag"] == 3 or null.get(key[:2]) == key[2]
            kind = "null" if is_null else STREAM_FLAGS.get(row["flag"])
            fact = {"process": key[0], "context": key[1], "stream": key[2], "kind": kind}
            facts.append(fact | {"name": names.get(key), "priority": _signed(row["priority"])})
    return facts[:_MAX_LISTED]


def _numbers(keys: Int64) -> list[str]:
    contexts: dict[tuple[int, int], set[int]] = {}
    for process, _, context, stream in keys.tolist():
        contexts.setdefault((process, stream), set()).add(context)
    return [
        f"{context}/{stream}" if len(contexts[process, stream]) > 1 else str(stream)
        for process, _, context, stream in keys.tolist()
    ]


def _roles(others: EventRows, texts: Sequence[str], places: Places, keys: Int64, line: Int64) -> list[str | None]:
    """ "compute" and "copy" for the stream of each device that hprof's compute and copy ranges used most."""
    if places.in_compute_step is None or places.in_copy_step is None:
        return [None] * len(keys)
    last = slice(len(places.in_copy_step) - len(others), None)
    computes = places.in_compute_step[last] & (others["kind"] == kind_code("compute"))
    copies = places.in_copy_step[last] & is_explicit_h2d(others, texts)
    roles: list[str | None] = [None] * len(keys)
    for role, mask in (("compute", computes), ("copy", copies)):
        count = np.bincount(line[mask], minlength=len(keys))
        served: set[tuple[int, int]] = set()
        for index in np.argsort(-count, kind="stable").tolist():
            device = (int(keys[index, 0]), int(keys[index, 1]))
            if count[index] and roles[index] is None and device not in served:
                roles[index] = role
                served.add(device)
    return roles


def _key(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["processId"], row["contextId"], row["streamId"]


def _signed(priority: object) -> int | None:
    """-5 is stored as 4294967291."""
    if not isinstance(priority, int):
        return None
    return priority - (1 << 32) if priority >= 1 << 31 else priority


NO_PASSES: Final = "arms, passes, tokens and experts: the trace has no NVTX ranges of domain hprof"


def missing_calls(recorded: TraceRows, why: str) -> list[str]:
    """Device work without the call that issued it, for the reason that the source has; calls without their work."""
    explicit = is_known(recorded.device_rows["correlation"])
    no_call = int(np.count_nonzero(explicit & is_absent(recorded.launches.call[recorded.device_slice])))
    n_explicit = int(np.count_nonzero(explicit))
    said = [f"when the host issued {no_call:,} of {n_explicit:,} device operations: {why}"] if no_call else []
    call_names = recorded.rows["name"][: recorded.n_calls]
    return said + unanswered_launches(call_names, recorded.labels.texts, recorded.has_work)


def export_cannot_say(tables: ExportTables, recorded: TraceRows, *, has_passes: bool) -> list[str]:
    """What this export could not give."""
    said = ["experts, slots, VRAM and which copy a kernel waits for: Nsight Systems does not record them"]
    if not has_passes:
        said.append(NO_PASSES)
    said += missing_calls(
        recorded, "their API calls are not in the export (it was trimmed, or they lie in a CUDA graph)"
    )
    rows = recorded.device_rows
    if is_absent(rows["process"]).any():
        said.append("which process the device work belongs to: the export has no globalPid")
    if nameless := int(np.count_nonzero(is_absent(recorded.rows["name"]))):
        said.append(f"the names of {nameless:,} of {len(recorded.rows):,} rows: StringIds does not hold them")
    if tables.columns(MEMCPY) and "srcKind" not in tables.columns(MEMCPY):
        said.append("whether copies read pinned or pageable memory: the export has no srcKind")
    if not tables.columns("TARGET_INFO_GPU"):
        said.append("the names and limits of the GPUs: the export has no TARGET_INFO_GPU")
    return said


def export_warnings(recorded: TraceRows, hprof: HprofRanges | None) -> list[str]:
    """What a reader of the figures must know."""
    said = []
    if recorded.n_device == 0:
        said.append(
            "The export holds no device work that can be read (no kernel, copy or memset): record with "
            "`nsys profile -t cuda,nvtx`."
        )
    graph = recorded.labels.code("graph")
    if graphs := int(np.count_nonzero(recorded.device_rows["detail"] == graph)):
        said.append(
            f"{format_count(graphs, 'CUDA graph launch')} {'was' if graphs == 1 else 'were'} recorded as a whole: the "
            "kernels and copies inside have no rows and count in no figure; record with `--cuda-graph-trace=node` to "
            "see them."
        )
    if hprof is not None and hprof.n_unknown:
        ranges = format_count(hprof.n_unknown, "range")
        named = "has a name" if hprof.n_unknown == 1 else "have names"
        said.append(f"{ranges} of domain hprof {named} that this hprof does not know; upgrade hprof.")
    return said
