"""What a recording says beside its rows: machine, processes, streams, memory over time; and sentences for readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from executor.arrays import Int64
from executor.units import format_count
from profiler.importers.cupti_spool.spool import NO_ID, Records, RecordType, SpoolFile
from profiler.importers.cupti_spool.tables import wide
from profiler.importers.device_traces import created_utc
from profiler.importers.nsys.facts import NO_PASSES, STREAM_FLAGS, missing_calls
from profiler.importers.nsys.ranges import HprofRanges
from profiler.importers.nsys.recorded import TraceRows
from profiler.importers.nsys.tables import ID_MASK

_MAX_LISTED: Final = 256
_MAX_STREAMS: Final = 20_000  # looked at
_MAX_POINTS: Final = 512  # of a device's memory over time
_ALLOCATED: Final = 1  # CUpti_ActivityMemoryOperationType
_RELEASED: Final = 2
_DEVICE_MEMORY: Final = 3  # CUpti_ActivityMemoryKind
_NODE_TYPES: Final = ("kernel", "memcpy", "memset")  # CUgraphNodeType, the first three
_FAR_CLOCKS_NS: Final = 1_000_000
_NAMES_LOST: Final = "names beyond the table's limit"  # as the library says it
_MOST_LOST: Final = 1 << 40  # in one record: more is damage, and would not add up


def machine_facts(files: Sequence[SpoolFile]) -> dict[str, Any]:
    """The GPUs that programs saw; empty where none did."""
    found: dict[int, dict[str, Any]] = {}
    for file in files:
        for record in file.of_type(RecordType.DEVICE)[:_MAX_LISTED]:
            found.setdefault(int(record["device"]), _gpu(file, record))
    return {"gpus": [found[number] for number in sorted(found)]} if found else {}


def _gpu(file: SpoolFile, record: Any) -> dict[str, Any]:
    return {
        "index": int(record["device"]),
        "name": file.texts.get(int(record["name"])),
        "memory_mib": int(record["bytes"]) >> 20,
        "memory_bytes_per_s": int(record["id"]) * 1000 if record["id"] < 1 << 50 else None,  # CUPTI says kB/s
        "copy_engines": int(record["correlation"]),
        "multiprocessors": int(record["extra"]),
        "compute_capability": f"{record['context']}.{record['stream']}",
    }


def start_utc(files: Sequence[SpoolFile]) -> str:
    """When the first process began, as the manifest's `created_utc`."""
    return created_utc(min(file.realtime_ns for file in files))


def process_facts(files: Sequence[SpoolFile]) -> list[dict[str, Any]]:
    """Each process: its number, parent and name, how it was recorded, and how its spool ends."""
    return [
        {
            "process": file.process,
            "parent": file.parent,
            "name": _first(said, "process name"),
            "cupti": _first(said, "cupti"),
            "graphs": _first(said, "graphs"),
            "ended": file.is_ended,
        }
        for file in files[:_MAX_LISTED]
        for said in [file.facts()]
    ]


def problems(files: Sequence[SpoolFile]) -> list[str]:
    """What the library complained of, each sentence once."""
    return list(dict.fromkeys(text for file in files for text in file.facts().get("problem", [])))


def lost_records(files: Sequence[SpoolFile]) -> Counter[str]:
    """Records that no spool has, by reason."""
    lost: Counter[str] = Counter()
    for file in files:
        rows = file.of_type(RecordType.LOST)
        for name in np.unique(rows["name"])[:_MAX_LISTED].tolist():
            count = int(np.clip(rows["bytes"][rows["name"] == name], 0, _MOST_LOST).sum())
            lost[file.texts.get(name, "for a reason not given")] += count
    return lost


def _stopped_by(files: Sequence[SpoolFile]) -> list[str]:
    """Why recording stopped for good though nobody asked for it."""
    names = {file.texts.get(int(record["name"])) for file in files for record in file.of_type(RecordType.STATE)[-1:]}
    return sorted(name for name in names if name in ("disk full", "limit reached"))


def stream_facts(files: Sequence[SpoolFile], used: Int64) -> list[dict[str, Any]]:
    """Kind and priority of the streams that rows lie on, out of many; used: (n, 4) process, device, context, stream."""
    known = {(process & ID_MASK, context, stream) for process, _, context, stream in used.tolist()}
    found = []
    for file in files:
        null = {(int(r["context"]), int(r["stream"])) for r in file.of_type(RecordType.CONTEXT)[:_MAX_LISTED]}
        for record in file.of_type(RecordType.STREAM)[:_MAX_STREAMS]:
            key = int(record["context"]), int(record["stream"])
            if (file.process, *key) not in known:
                continue
            kind = "null" if key in null else STREAM_FLAGS.get(int(record["kind"]))
            priority = int(np.uint32(record["extra"]).astype(np.int32))
            found.append(
                {"process": file.process, "context": key[0], "stream": key[1], "kind": kind, "priority": priority}
            )
    return found[:_MAX_LISTED]


def memory_facts(files: Sequence[SpoolFile], origin_ns: int) -> list[dict[str, Any]]:
    """Device memory that programs allocated, over time, of each process and device.

    `points` are [ns from the capture's start, bytes]: the most in each of at most 512 stretches.
    """
    found = []
    for file in files:
        rows = file.of_type(RecordType.MEMORY)
        rows = rows[rows["src_kind"] == _DEVICE_MEMORY]
        for device in np.unique(rows["device"]).tolist():
            at, held = held_bytes(rows[rows["device"] == device])
            if not len(at):
                continue
            stretch = np.linspace(0, len(at), min(_MAX_POINTS, len(at)), endpoint=False).astype(np.int64)
            most = np.maximum.reduceat(held, stretch)
            found.append(
                {
                    "process": file.process,
                    "device": None if device == NO_ID else device,
                    "peak_bytes": int(held.max()),
                    "last_bytes": int(held[-1]),
                    "points": np.stack([at[stretch] - origin_ns, most], axis=1).tolist(),
                }
            )
    return found


def held_bytes(rows: Records) -> tuple[Int64, Int64]:
    """(ns, bytes held from then on) after each allocation and release, in the order of time.

    A release counts what its address was allocated with: CUPTI does not always repeat the size. What was allocated
    before the recording began is not known, nor counted.
    """
    rows = rows[np.isin(rows["kind"], (_ALLOCATED, _RELEASED))]
    rows = rows[np.argsort(rows["start"], kind="stable")]
    is_release = rows["kind"] == _RELEASED
    order = np.lexsort((np.arange(len(rows)), rows["id"]))
    address, release, size = rows["id"][order], is_release[order], wide(rows["bytes"])[order]
    of_before = np.zeros(len(rows), np.int64)
    follows = np.flatnonzero((address[1:] == address[:-1]) & release[1:] & ~release[:-1]) + 1
    of_before[follows] = size[follows - 1]
    change = np.zeros(len(rows), np.int64)
    change[order] = np.where(release, -of_before, np.clip(size, 0, 1 << 50))
    return wide(rows["start"]), np.cumsum(change)


def recording_warnings(files: Sequence[SpoolFile], recorded: TraceRows, hprof: HprofRanges | None) -> list[str]:
    """What a reader of the figures must know."""
    said = [f"The recorder says: {text}." for text in problems(files)[:_MAX_LISTED]]
    said += [
        f"{format_count(count, 'row')} without a name: the recorder keeps a million of them or 64 MiB, and no more."
        if reason == _NAMES_LOST
        else f"{format_count(count, 'record')} lost: {reason}."
        for reason, count in lost_records(files).items()
    ]
    said += [
        f"Recording stopped before the end of the program ({reason}): what came then is missing."
        for reason in _stopped_by(files)
    ]
    if open_ended := [file for file in files if not file.is_ended]:
        which = ", ".join(str(file.process) for file in open_ended[:8])
        said.append(
            f"{format_count(len(open_ended), 'process')} ended without the recorder's last words, killed or by _exit: "
            f"what was not completed a second before is missing, of process {which}."
        )
    if cut := sum(file.n_cut_bytes for file in files):
        said.append(f"The last {format_count(cut, 'byte')} of the spools are no whole chunk and were left out.")
    said += _graph_warnings(files, recorded)
    if (offset := _clock_offset_ns(files)) > _FAR_CLOCKS_NS:
        said.append(
            f"CUPTI's clock and the system's were up to {offset / 1e6:.1f} ms apart, so that ranges from before CUDA "
            "started may lie beside their work."
        )
    if recorded.n_device == 0:
        said.append(
            "The recording holds no device work (no kernel, copy or memset): no recorded process used a CUDA device "
            "while it ran. `hprof doctor` says whether there is one; PyTorch on the CPU is recorded by hprof.record."
        )
    if hprof is not None and hprof.n_unknown:
        said.append(
            f"{format_count(hprof.n_unknown, 'range')} of domain hprof with a name that this hprof does not know; "
            "upgrade hprof."
        )
    return said


def _graph_warnings(files: Sequence[SpoolFile], recorded: TraceRows) -> list[str]:
    graph = recorded.labels.code("graph")
    work = recorded.device_rows
    launches = work["detail"] == graph
    if not (n_launches := int(np.count_nonzero(launches))):
        return []
    nodes: Counter[str] = Counter()
    for file in files:
        rows = file.of_type(RecordType.GRAPH_NODES)
        made_of = [rows["bytes"][rows["kind"] == kind][-1:].sum() for kind in range(len(_NODE_TYPES))]  # the last count
        nodes.update({name: int(count) for name, count in zip(_NODE_TYPES, made_of, strict=True)})
    made = ", ".join(f"{format_count(count, f'{name} node')}" for name, count in nodes.items() if count)
    held = f" (the graphs were made of {made})" if made else ""
    time_ms = int((work["end"] - work["start"])[launches].sum()) / 1e6
    return [
        f"{format_count(n_launches, 'CUDA graph launch')} of together {time_ms:,.1f} ms recorded as a whole{held}: the "
        "kernels and copies inside have no rows and count in no figure; record with --graphs node to see them, which "
        "costs time in each."
    ]


def _clock_offset_ns(files: Sequence[SpoolFile]) -> int:
    """The most by which CUPTI's clock was off the system's."""
    offsets = [0]
    for file in files:
        clock = file.of_type(RecordType.CLOCK)
        clock = clock[clock["end"] > 0]
        if len(clock):
            offsets.append(int(np.abs(wide(clock["start"]) - wide(clock["end"])).max()))
    return max(offsets)


def recording_cannot_say(files: Sequence[SpoolFile], recorded: TraceRows, hprof: HprofRanges | None) -> list[str]:
    """What this recording could not give."""
    left_out = sorted({text for file in files for text in file.facts().get("without", [])})
    said = [f"{text.replace(',', ', ')}: left out with --without" for text in left_out]
    said += [
        "experts, slots and which copy a kernel waits for: no CUDA call says so",
        "page migrations of managed memory: the recorder does not ask for them",
    ]
    if hprof is None:
        said.append(NO_PASSES)
    return said + missing_calls(
        recorded, "their calls were made before the recording began, or are none that it records"
    )


def _first(said: dict[str, list[str]], key: str) -> str | None:
    return said[key][0] if key in said else None
