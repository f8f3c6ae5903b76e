"""Sentences for the manifest: what an export could not say, and what a reader of its figures must know."""

from __future__ import annotations

from typing import Final

import numpy as np

from profiler.arithmetic.joins import NONE
from profiler.importers.nsys.device_rows import MEMCPY
from profiler.importers.nsys.hprof_ranges import HprofRanges
from profiler.importers.nsys.recorded import Recorded
from profiler.importers.nsys.rows import ABSENT
from profiler.importers.nsys.tables import NULL, Tables
from profiler.importers.unanswered import unanswered_launches

_NO_PASSES: Final = (
    "arms, passes, tokens and experts: the trace has no NVTX ranges of domain hprof, so figures cover all of it"
)


def cannot_say(tables: Tables, recorded: Recorded, *, has_passes: bool) -> list[str]:
    """What this export could not give."""
    said = ["experts, slots, VRAM and which copy a kernel waits for: Nsight Systems does not record them"]
    if not has_passes:
        said.append(_NO_PASSES)
    rows = recorded.device_rows
    explicit = rows["correlation"] != NULL
    no_call = int(np.count_nonzero(explicit & (recorded.launches.call[recorded.device_slice] == NONE)))
    if no_call:
        said.append(
            f"when the host issued {no_call} of {int(np.count_nonzero(explicit))} device operations: "
            "their API calls are not in the export (it was trimmed, or they lie in a CUDA graph)"
        )
    has_work = np.zeros(recorded.n_calls + 1, np.bool_)
    has_work[recorded.launches.call[recorded.device_slice]] = True  # NONE marks the last place
    call_names = recorded.rows["name"][: recorded.n_calls]
    said += unanswered_launches(call_names, recorded.labels.texts, has_work[:-1])
    if (rows["process"] == NULL).any():
        said.append("which process the device work belongs to: the export has no globalPid")
    if nameless := int(np.count_nonzero(recorded.rows["name"] == ABSENT)):
        said.append(f"the names of {nameless:,} of {len(recorded.rows):,} rows: StringIds does not hold them")
    if tables.columns(MEMCPY) and "srcKind" not in tables.columns(MEMCPY):
        said.append("whether copies read pinned or pageable memory: the export has no srcKind")
    if not tables.columns("TARGET_INFO_GPU"):
        said.append("the names and limits of the GPUs: the export has no TARGET_INFO_GPU")
    return said


def warnings(recorded: Recorded, hprof: HprofRanges | None) -> list[str]:
    """What a reader of the figures must know."""
    said = []
    if recorded.n_device == 0:
        said.append(
            "The export holds no device work (no kernel, copy or memset): record with `nsys profile -t cuda,nvtx`."
        )
    graph = recorded.labels.code("graph")
    if graphs := int(np.count_nonzero(recorded.device_rows["detail"] == graph)):
        said.append(
            f"{graphs} CUDA graph launches were recorded as a whole: the kernels and copies inside them have no "
            "rows and count in no figure; record with `--cuda-graph-trace=node` to see them."
        )
    if hprof is not None and hprof.n_unknown:
        said.append(
            f"{hprof.n_unknown} ranges of domain hprof have names that this hprof does not know; upgrade hprof."
        )
    return said
