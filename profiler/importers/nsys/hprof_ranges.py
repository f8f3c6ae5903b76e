"""Ranges of domain `hprof`: they restore what only the executor knew when it issued the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from executor.tracing.nvtx_names import DOMAIN, Name, PassName, StepName, UbatchName, parse
from profiler.importers.nsys import enums
from profiler.importers.nsys.nvtx import Ranges
from profiler.importers.nsys.project import Spans
from profiler.importers.nsys.rows import ABSENT, Mask
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


def hprof_ranges(ranges: Ranges) -> HprofRanges | None:
    """The domain's ranges; None when the trace has none."""
    ours = pc.index_in(pa.array([DOMAIN]), ranges.texts).to_pylist()[0]
    ranges = ranges.where(ranges.domain == (ABSENT - 1 if ours is None else ours))
    if len(ranges) == 0:
        return None
    used, code = np.unique(ranges.name, return_inverse=True)
    texts = ranges.texts.take(pa.array(np.maximum(used, 0))).to_pylist()
    names = [None if number == ABSENT else parse(text) for number, text in zip(used.tolist(), texts, strict=True)]
    passes, ubatches, steps = (_of_sort(s, names, code, ranges.spans) for s in (PassName, UbatchName, StepName))
    n_unknown = int(np.count_nonzero(_is(type(None), names)[code]))
    return HprofRanges(names, passes, ubatches, steps, n_unknown)


def _of_sort(sort: type[Name], names: Sequence[Name | None], code: Int64, spans: Spans) -> Named:
    mine = np.flatnonzero(_is(sort, names)[code])
    mine = mine[np.argsort(spans.start[mine], kind="stable")]
    return Named(spans.take(mine), code[mine])


def _is(sort: type[Name] | type[None], names: Sequence[Name | None]) -> Mask:
    return np.array([isinstance(name, sort) for name in names], np.bool_)
