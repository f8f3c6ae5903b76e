"""Ranges of domain `hprof`: they restore what only the executor knew when it issued the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from executor.nvtx_names import DOMAIN, Name, PassName, StepName, UbatchName, parse
from profiler.importers.nsys import enums
from profiler.importers.nsys.places import Launches, Places
from profiler.importers.nsys.project import NONE, Spans, innermost
from profiler.importers.nsys.rows import ABSENT, PHASES, Mask, Rows
from profiler.importers.nsys.strings import Labels
from profiler.importers.nsys.tables import NULL, Int64

_WHOLE: Final = "whole"


@dataclass(frozen=True, slots=True)
class Named:
    """Ranges of one sort, by start; `code` indexes the distinct names."""

    spans: Spans  # group: globalTid
    code: Int64

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def by_process(self) -> Spans:
        """The same spans, grouped by process: for sorts that never overlap inside one."""
        return Spans(self.spans.group >> enums.TID_BITS, self.spans.start, self.spans.end)


@dataclass(frozen=True, slots=True)
class HprofRanges:
    """All ranges of the domain whose names parse."""

    names: list[Name | None]  # distinct
    passes: Named
    ubatches: Named
    steps: Named
    n_unknown: int  # ranges of the domain whose name this hprof does not understand

    def values(self, get: Callable[[Name], int | None], missing: int = NULL) -> Int64:
        """One number of each distinct name, `missing` where it has none."""
        found = [get(name) if name is not None else None for name in self.names]
        return np.array([missing if value is None else value for value in found], np.int64)

    def pass_names(self) -> list[PassName]:
        """The names of the passes, in the order of `passes`."""
        found = [self.names[code] for code in self.passes.code.tolist()]
        return [name for name in found if isinstance(name, PassName)]

    def pass_ids(self) -> Int64:
        """A number for each pass: its own where all are distinct, else (several runs in one file) the order."""
        own = [name.pass_id for name in self.pass_names()]
        return np.array(own if len(set(own)) == len(own) else range(len(own)), np.int64)


def hprof_ranges(ranges: Rows, texts: Sequence[str]) -> HprofRanges | None:
    """The domain's ranges; None when the trace has no such domain. `texts`: what the codes of `ranges` mean."""
    if DOMAIN not in texts:
        return None
    ours = ranges.where(ranges["detail"] == texts.index(DOMAIN))
    used, code = np.unique(ours["name"], return_inverse=True)
    names = [parse(texts[number]) if number >= 0 else None for number in used.tolist()]
    return HprofRanges(
        names,
        _of_sort(PassName, names, code, ours),
        _of_sort(UbatchName, names, code, ours),
        _of_sort(StepName, names, code, ours),
        n_unknown=int(np.count_nonzero(_is(type(None), names)[code])) if len(code) else 0,
    )


def places(hprof: HprofRanges, rows: Rows, launches: Launches, labels: Labels) -> Places:
    """What the ranges say of each row: by its launching call, for the pass also by the row's own time."""
    found = Places.unknown(len(rows))
    in_pass = pass_of(hprof, rows, launches)
    found.pass_id = _look_up(hprof.pass_ids(), in_pass, NULL)
    in_ubatch = launches.gather(innermost(hprof.ubatches.spans, launches.calls))
    ubatch_code = _look_up(hprof.ubatches.code, in_ubatch, NONE)
    found.ubatch = _look_up(hprof.values(lambda name: getattr(name, "ubatch", None)), ubatch_code, NULL)
    phases = hprof.values(lambda name: PHASES.index(name.phase) if isinstance(name, UbatchName) else None, ABSENT)
    found.phase = _look_up(phases, ubatch_code, ABSENT)
    in_step = launches.gather(innermost(hprof.steps.spans, launches.calls))
    _place_in_steps(found, hprof, rows, _look_up(hprof.steps.code, in_step, NONE), labels)
    return found


def pass_of(hprof: HprofRanges, rows: Rows, launches: Launches) -> Int64:
    """The pass range of each row, or NONE. Passes of a process never overlap, so any of its threads counts."""
    calls = launches.calls
    of_calls = innermost(hprof.passes.by_process, Spans(calls.group >> enums.TID_BITS, calls.start, calls.end))
    by_call = launches.gather(of_calls)
    by_time = innermost(hprof.passes.by_process, Spans(rows["process"], rows["start"], rows["end"]))
    return np.where(launches.call == NONE, by_time, by_call)


def _place_in_steps(found: Places, hprof: HprofRanges, rows: Rows, step: Int64, labels: Labels) -> None:
    steps = [name if isinstance(name, StepName) else None for name in hprof.names]
    tensors = [None if name is None or name.tensor is None else labels.code(name.tensor) for name in steps]
    found.layer = _look_up(hprof.values(lambda name: getattr(name, "layer", None)), step, NULL)
    found.tensor = _look_up(np.array([ABSENT if t is None else t for t in tensors], np.int64), step, ABSENT)
    found.in_copy_step = (step != NONE) & (found.tensor != ABSENT)
    found.in_compute_step = (step != NONE) & (found.tensor == ABSENT)
    whole = _look_up(_is_whole(steps), step, 0) == 1
    found.whole_bytes = np.where(whole, rows["bytes"], NULL)


def _is_whole(steps: Sequence[StepName | None]) -> Int64:
    return np.array([int(name is not None and name.what == _WHOLE) for name in steps], np.int64)


def _of_sort(sort: type[Name], names: Sequence[Name | None], code: Int64, ranges: Rows) -> Named:
    mine = np.flatnonzero(_is(sort, names)[code]) if len(code) else np.empty(0, np.int64)
    mine = mine[np.argsort(ranges["start"][mine], kind="stable")]
    spans = Spans(ranges["thread"][mine], ranges["start"][mine], ranges["end"][mine])
    return Named(spans, code[mine])


def _is(sort: type[Name] | type[None], names: Sequence[Name | None]) -> Mask:
    return np.array([isinstance(name, sort) for name in names], np.bool_)


def _look_up(values: Int64, index: Int64, missing: int) -> Int64:
    if len(values) == 0:
        return np.full(len(index), missing)
    return np.where(index < 0, missing, values[np.maximum(index, 0)])
