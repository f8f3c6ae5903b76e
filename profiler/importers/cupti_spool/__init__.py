"""What `hprof record` wrote: a spool file, or the folder with one for each process of a run.

`spool` reads the files, `tables` gives their records as the tables that the importer of Nsight Systems reads, `nvtx`
pairs the ends of ranges, `facts` tells what is said beside the rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from executor.errors import HprofError
from executor.units import format_bytes, format_count
from profiler.importers.base import Imported, ImportOptions, TraceFormat
from profiler.importers.cupti_spool import facts
from profiler.importers.cupti_spool.spool import (
    HEADER_BYTES,
    MAGIC,
    MAX_BYTES,
    NO_ID,
    RECORD,
    SPOOL_ENDING,
    RecordType,
    SpoolFile,
    read_spool,
    spool_bytes,
)
from profiler.importers.cupti_spool.tables import SpoolTables
from profiler.importers.nsys.build import SourceSays, build
from profiler.importers.nsys.facts import StreamLabels
from profiler.importers.nsys.recorded import TraceRows
from profiler.importers.same_content import same_content

_MAX_PROCESSES: Final = 4096


def detect(path: Path, head: bytes) -> bool:
    """Whether this is a spool, or a folder of them."""
    if path.is_dir():
        return any(path.glob(f"*{SPOOL_ENDING}"))
    return head.startswith(MAGIC)


def read(path: Path, _options: ImportOptions) -> Imported:
    """Read one recording: its processes lie on one clock. Raises HprofError for what is none, or is damaged."""
    paths, warnings = _of_folder(path) if path.is_dir() else ([path], [])
    if (n_bytes := sum(one.lstat().st_size for one in paths)) > MAX_BYTES:
        raise HprofError(
            f"{path} holds {format_bytes(n_bytes)} of spools, and hprof imports {format_bytes(MAX_BYTES)}; import "
            "its files one by one, or record with a lower --max-bytes."
        )
    files = [read_spool(one) for one in paths]
    for earlier, later in same_content(paths):
        raise HprofError(
            f"{path} holds {paths[later].name}, which has the same bytes as {paths[earlier].name}, and a spool is one "
            "process: take one of them away."
        )
    tables = SpoolTables(files)
    tables.warnings += warnings
    return build(tables, _says(tables, files))


def _of_folder(folder: Path) -> tuple[list[Path], list[str]]:
    """The spools to read, in the order of their names, and what is said of those that are left out."""
    found = sorted(folder.glob(f"*{SPOOL_ENDING}"))
    begun = [path for path in found if not path.is_file() or path.stat().st_size >= HEADER_BYTES]
    if not begun:
        raise HprofError(f"{folder} holds no spool ({SPOOL_ENDING}); give the folder that hprof record wrote.")
    largest = sorted(begun, key=lambda path: -path.lstat().st_size)[:_MAX_PROCESSES]
    warnings = []
    if n_none := len(found) - len(begun):
        warnings.append(f"{format_count(n_none, 'process')} ended when its recording had just begun: nothing is known.")
    if n_more := len(begun) - len(largest):
        warnings.append(
            f"The spools of {format_count(n_more, 'process')} that recorded least were left out, as hprof reads "
            f"{_MAX_PROCESSES:,}: record fewer with --process."
        )
    return sorted(largest), warnings


def _says(tables: SpoolTables, files: list[SpoolFile]) -> SourceSays:
    def extra(recorded: TraceRows, streams: StreamLabels) -> dict[str, Any]:
        return {
            "processes": facts.process_facts(files),
            "origin_ns": recorded.origin_ns,
            "nvtx_ranges": len(recorded.ranges),
            "nvtx_marks": tables.n_marks,
            "streams": facts.stream_facts(files, streams.keys),
            "device_memory": facts.memory_facts(files, recorded.origin_ns),
            "profiler_errors": [f"{count} lost: {reason}" for reason, count in facts.lost_records(files).items()],
        }

    return SourceSays(
        source="cupti",
        machine=facts.machine_facts(files),
        created_utc=facts.start_utc(files),
        extra=extra,
        warnings=lambda recorded, hprof: facts.recording_warnings(files, recorded, hprof),
        cannot_say=lambda recorded, hprof: facts.recording_cannot_say(files, recorded, hprof),
    )


def sample() -> bytes:
    """A copy, and a kernel that it lies beside."""
    records = np.zeros(2, RECORD)
    records["type"] = RecordType.COPY, RecordType.KERNEL
    records["kind"] = 1, 0  # host to device
    records["src_kind"] = 2, 0  # pinned
    records["start"], records["end"] = (2000, 1000), (4000, 5000)
    records["bytes"] = 50_000, 0
    records["context"], records["stream"], records["correlation"] = 1, (14, 7), (2, 1)
    records["name"] = 0, 1
    records["thread"] = NO_ID
    return spool_bytes(400, records, {1: "gemm"})


FORMAT: Final = TraceFormat(detect, read, sample, endings=(SPOOL_ENDING, ".spool"))
