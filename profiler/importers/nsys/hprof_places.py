"""The place of each row by ranges of domain `hprof`."""

from __future__ import annotations

from typing import Final

import numpy as np

from executor.tracing.nvtx_names import StepName, UbatchName
from profiler.arithmetic.joins import NONE
from profiler.importers.nsys import enums
from profiler.importers.nsys.hprof_ranges import HprofRanges
from profiler.importers.nsys.look_ahead import ubatch_served
from profiler.importers.nsys.places import Places
from profiler.importers.nsys.project import Spans, innermost
from profiler.importers.nsys.recorded import Recorded
from profiler.importers.nsys.rows import ABSENT, PHASES, look_up
from profiler.importers.nsys.tables import NULL, Int64

_WHOLE: Final = "whole"


def places(hprof: HprofRanges, recorded: Recorded) -> Places:
    """What the ranges around each row's launching call say, but for the pass: see `pass_of`."""
    launches = recorded.launches
    in_step = launches.gather(innermost(hprof.steps.spans, launches.calls))
    step = look_up(hprof.steps.code, in_step, NONE)
    layer = look_up(hprof.values(lambda name: getattr(name, "layer", None)), step, NULL)
    tensor = _tensors(hprof, recorded, step)
    is_copy = (step != NONE) & (tensor != ABSENT)
    in_ubatch = launches.gather(innermost(hprof.ubatches.spans, launches.calls))
    serves = ubatch_served(hprof, launches, in_ubatch, np.where(is_copy, layer, NULL))
    ubatch = look_up(hprof.ubatches.code, serves, NONE)
    phases = hprof.values(lambda name: PHASES.index(name.phase) if isinstance(name, UbatchName) else None, ABSENT)
    return Places(
        phase=look_up(phases, ubatch, ABSENT),
        ubatch=look_up(hprof.values(lambda name: getattr(name, "ubatch", None)), ubatch, NULL),
        layer=layer,
        tensor=tensor,
        whole_bytes=_whole_bytes(hprof, recorded, in_step, step),
        in_copy_step=is_copy,
        in_compute_step=(step != NONE) & ~is_copy,
    )


def pass_of(hprof: HprofRanges, recorded: Recorded) -> Int64:
    """The pass id of each row, by its launching call, else by its own time; NULL outside of passes.

    Passes of a process never overlap, so any of its threads counts.
    """
    launches, rows = recorded.launches, recorded.rows
    calls, passes = launches.calls, hprof.passes.by_process
    of_calls = innermost(passes, Spans(calls.group >> enums.TID_BITS, calls.start, calls.end))
    by_time = innermost(passes, Spans(rows["process"], rows["start"], rows["end"]))
    return look_up(hprof.pass_ids(), np.where(launches.call == NONE, by_time, launches.gather(of_calls)), NULL)


def _tensors(hprof: HprofRanges, recorded: Recorded, step: Int64) -> Int64:
    """The label code of each row's tensor, ABSENT outside of copies."""
    tensors = [name.tensor if isinstance(name, StepName) else None for name in hprof.names]
    codes = [ABSENT if tensor is None else recorded.labels.code(tensor) for tensor in tensors]
    return look_up(np.array(codes, np.int64), step, ABSENT)


def _whole_bytes(hprof: HprofRanges, recorded: Recorded, in_step: Int64, step: Int64) -> Int64:
    """What a whole copy of each row's tensor moves: seen where the trace holds one, of any pass.

    A copy may be several operations, so the bytes of a step are those of all rows in its range.
    """
    n_bytes = recorded.rows["bytes"]
    known = (in_step != NONE) & (n_bytes != NULL)
    of_step = np.bincount(in_step[known], weights=n_bytes[known], minlength=len(hprof.steps))
    whole: dict[tuple[int | None, str | None], int] = {}
    for code, size in zip(hprof.steps.code.tolist(), of_step.astype(np.int64).tolist(), strict=True):
        name = hprof.names[code]
        if isinstance(name, StepName) and name.what == _WHOLE and size > 0:
            whole[name.layer, name.tensor] = max(size, whole.get((name.layer, name.tensor), 0))
    sizes = [whole.get((n.layer, n.tensor), NULL) if isinstance(n, StepName) else NULL for n in hprof.names]
    return look_up(np.array(sizes, np.int64), step, NULL)
