"""What NVTX ranges say of each row: pass, phase, ubatch, layer, tensor; and the tables `passes` and `ubatches`.

Ranges of domain `hprof` restore what only the executor knew when it issued the work. Other people's ranges give
layers and ubatches where their names spell them out, and nothing otherwise.

Copies ahead are issued by the last layers of a ubatch for the first layers of the next one. Their range nests in
the ubatch that issues them, so its name would say the wrong one. Layers are computed in order: a copy for a layer that
lies before one already computed in this ubatch belongs to the next ubatch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from executor.arrays import Flags, Int64
from executor.tracing.nvtx_names import DOMAIN, Name, PassName, StepName, UbatchName, parse
from profiler.arithmetic.intervals import Line
from profiler.importers import hprof_passes
from profiler.importers.absent import absent, column_of, is_absent, is_known, known_where, taken
from profiler.importers.nsys.nvtx import NvtxRanges
from profiler.importers.nsys.project import GroupedSpans, LaunchingCalls, Places, Projection, innermost
from profiler.importers.nsys.recorded import TraceRows
from profiler.importers.nsys.rows import EventRows
from profiler.importers.nsys.tables import TID_BITS
from profiler.schema import PHASES

_WHOLE_COPY: Final = "whole"  # `what` of a copy of all that the unit has
_LAYERS: Final = 1 << 32  # more than a model has

# A number right after the word, and not a count (`n_layers=32`) or a span (`layers 0-31`).
_WORD: Final = r"(?:^|[^a-z_0-9])"
_NUMBER: Final = r"[ ._:=#\[(-]{0,2}([0-9]{1,4})(?:$|[^0-9.-]|\.[a-z_])"
_ANY_WORD: Final = "layer|blk|batch"
LAYER_NAME: Final = re.compile(_WORD + r"(?:layers?|blk|decoder_layers?)" + _NUMBER, re.IGNORECASE)
UBATCH_NAME: Final = re.compile(_WORD + r"(?:u-?batch|micro[ _-]?batch)" + _NUMBER, re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NamedSpans:
    """Ranges of one sort, by start; `code` indexes the distinct names."""

    spans: GroupedSpans  # group: globalTid
    code: Int64

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def by_process(self) -> GroupedSpans:
        """The same spans, grouped by process: for sorts that never overlap inside one."""
        return GroupedSpans(self.spans.group >> TID_BITS, self.spans.start, self.spans.end)


@dataclass(frozen=True, slots=True)
class HprofRanges:
    """All ranges of the domain whose names parse."""

    names: list[Name | None]  # distinct
    passes: NamedSpans
    ubatches: NamedSpans
    steps: NamedSpans
    n_unknown: int  # ranges of the domain whose name this hprof does not understand

    def values(self, get: Callable[[Name], int | None]) -> Int64:
        """One number of each distinct name, where it has one."""
        return column_of(get(name) if name is not None else None for name in self.names)

    def pass_names(self) -> list[PassName]:
        """The names of the passes, in the order of `passes`."""
        found = [self.names[code] for code in self.passes.code.tolist()]
        return [name for name in found if isinstance(name, PassName)]

    def pass_ids(self) -> Int64:
        """A number for each pass, as `hprof_passes.pass_ids` has it."""
        return np.array(hprof_passes.pass_ids(self.pass_names()), np.int64)


def hprof_ranges(ranges: NvtxRanges) -> HprofRanges | None:
    """The domain's ranges; None when the trace has none."""
    ours = pc.index_in(pa.array([DOMAIN]), ranges.texts).to_pylist()[0]
    ranges = ranges.where(ranges.domain == ours) if ours is not None else ranges.where(np.zeros(len(ranges), np.bool_))
    if len(ranges) == 0:
        return None
    used, code = np.unique(ranges.name, return_inverse=True)
    texts = ranges.texts.take(pa.array(np.maximum(used, 0))).to_pylist()
    names = [parse(text) if named else None for named, text in zip(is_known(used).tolist(), texts, strict=True)]
    passes, ubatches, steps = (_of_sort(s, names, code, ranges.spans) for s in (PassName, UbatchName, StepName))
    n_unknown = int(np.count_nonzero(_is(type(None), names)[code]))
    return HprofRanges(names, passes, ubatches, steps, n_unknown)


def _of_sort(sort: type[Name], names: Sequence[Name | None], code: Int64, spans: GroupedSpans) -> NamedSpans:
    mine = np.flatnonzero(_is(sort, names)[code])
    mine = mine[np.argsort(spans.start[mine], kind="stable")]
    return NamedSpans(spans.take(mine), code[mine])


def _is(sort: type[Name] | type[None], names: Sequence[Name | None]) -> Flags:
    return np.array([isinstance(name, sort) for name in names], np.bool_)


def places_by_hprof_ranges(hprof: HprofRanges, recorded: TraceRows) -> Places:
    """What the ranges around each row's launching call say, but for the pass: see `pass_of`."""
    launches = recorded.launches
    in_step = launches.gather(innermost(hprof.steps.spans, launches.calls))
    step = taken(hprof.steps.code, in_step)
    layer = taken(hprof.values(lambda name: getattr(name, "layer", None)), step)
    tensor = _tensors(hprof, recorded, step)
    is_copy = is_known(step) & is_known(tensor)
    in_ubatch = launches.gather(innermost(hprof.ubatches.spans, launches.calls))
    serves = ubatch_served(hprof, launches, in_ubatch, known_where(is_copy, layer))
    ubatch = taken(hprof.ubatches.code, serves)
    phases = hprof.values(lambda name: PHASES.index(name.phase) if isinstance(name, UbatchName) else None)
    return Places(
        phase=taken(phases, ubatch),
        ubatch=taken(hprof.values(lambda name: getattr(name, "ubatch", None)), ubatch),
        layer=layer,
        tensor=tensor,
        whole_bytes=_whole_bytes(hprof, recorded, in_step, step),
        in_copy_step=is_copy,
        in_compute_step=is_known(step) & ~is_copy,
    )


def pass_of(hprof: HprofRanges, recorded: TraceRows) -> Int64:
    """The pass id of each row, by its launching call, else by its own time; none outside of passes.

    Passes of a process never overlap, so any of its threads counts.
    """
    launches, rows = recorded.launches, recorded.rows
    calls, passes = launches.calls, hprof.passes.by_process
    of_calls = innermost(passes, GroupedSpans(calls.group >> TID_BITS, calls.start, calls.end))
    by_time = innermost(passes, GroupedSpans(rows["process"], rows["start"], rows["end"]))
    return taken(hprof.pass_ids(), np.where(is_known(launches.call), launches.gather(of_calls), by_time))


def _tensors(hprof: HprofRanges, recorded: TraceRows, step: Int64) -> Int64:
    """The label code of each row's tensor; none outside of copies."""
    tensors = [name.tensor if isinstance(name, StepName) else None for name in hprof.names]
    return taken(column_of(None if tensor is None else recorded.labels.code(tensor) for tensor in tensors), step)


def _whole_bytes(hprof: HprofRanges, recorded: TraceRows, in_step: Int64, step: Int64) -> Int64:
    """What a whole copy of each row's tensor moves: seen where the trace holds one, of any pass.

    A copy may be several operations, so the bytes of a step are those of all rows in its range.
    """
    n_bytes = recorded.rows["bytes"]
    known = is_known(in_step) & is_known(n_bytes)
    of_step = np.bincount(in_step[known], weights=n_bytes[known], minlength=len(hprof.steps))
    whole: dict[tuple[int | None, str | None], int] = {}
    for code, size in zip(hprof.steps.code.tolist(), of_step.astype(np.int64).tolist(), strict=True):
        name = hprof.names[code]
        if isinstance(name, StepName) and name.what == _WHOLE_COPY and size > 0:
            whole[name.layer, name.tensor] = max(size, whole.get((name.layer, name.tensor), 0))
    sizes = (whole.get((name.layer, name.tensor)) if isinstance(name, StepName) else None for name in hprof.names)
    return taken(column_of(sizes), step)


def ubatch_served(hprof: HprofRanges, launches: LaunchingCalls, ubatch: Int64, copied_layer: Int64) -> Int64:
    """The row of the ubatch range that each row works for.

    ubatch: the range that each row was issued in, if any. copied_layer: the layer of rows that are copies of a
    step, no value for all others.
    """
    copies = np.flatnonzero(is_known(ubatch) & is_known(copied_layer) & is_known(launches.call))
    computed = _computed_before(hprof, ubatch[copies], launches.calls.start[launches.call[copies]])
    ahead = copies[is_known(computed) & (computed > copied_layer[copies])]
    served = ubatch.copy()
    served[ahead] = _next(hprof)[ubatch[ahead]]
    return served


def _computed_before(hprof: HprofRanges, ubatch: Int64, at: Int64) -> Int64:
    """The highest layer whose computing the ubatch had issued before each time, if any."""
    layers = hprof.values(lambda n: n.layer if isinstance(n, StepName) and n.tensor is None else None)
    layer = taken(layers, hprof.steps.code)
    steps = np.flatnonzero(is_known(layer))
    spans = hprof.steps.spans.take(steps)
    within = innermost(hprof.ubatches.spans, spans)
    known = is_known(within)
    within, start, layer = within[known], spans.start[known], layer[steps][known]
    if len(within) == 0 or len(ubatch) == 0:
        return absent(len(ubatch))
    groups, times = np.concatenate([within, ubatch]), np.concatenate([start, at])
    line = Line(groups, times, times, len(hprof.ubatches))
    position = line.place(within, start)
    order = np.argsort(position, kind="stable")
    # One running maximum serves all ubatches, as later ones count from a higher base.
    highest = np.maximum.accumulate(within[order] * _LAYERS + layer[order])
    before = np.searchsorted(position[order], line.place(ubatch, at)) - 1
    found = taken(highest, before)
    return known_where(is_known(found) & (found // _LAYERS == ubatch), found % _LAYERS)


def _next(hprof: HprofRanges) -> Int64:
    """For each ubatch the next one of its pass and thread, itself where it is the last."""
    ubatches = hprof.ubatches
    of_pass = innermost(hprof.passes.by_process, ubatches.by_process)
    own = np.arange(len(ubatches))
    order = np.lexsort((own, ubatches.spans.group, of_pass))
    following = own.copy()
    same = (of_pass[order][1:] == of_pass[order][:-1]) & (
        ubatches.spans.group[order][1:] == ubatches.spans.group[order][:-1]
    )
    following[order[:-1][same]] = order[1:][same]
    return following


def pass_table(hprof: HprofRanges, rows: EventRows, pass_id: Int64, ubatches: pa.Table) -> pa.Table:
    """One row a pass, each process a boot. It ends when its range and all the work that it launched have ended."""
    numbers, spans = hprof.pass_ids(), hprof.passes.spans
    order = np.argsort(numbers, kind="stable")
    at = np.flatnonzero(is_known(pass_id))
    index = order[np.searchsorted(numbers[order], pass_id[at])] if len(numbers) else at[:0]
    ends = spans.end.copy()
    np.maximum.at(ends, index, rows["end"][at])
    windows = list(zip(spans.start.tolist(), ends.tolist(), strict=True))
    asked = (hprof_passes.asked(name) for name in hprof.pass_names())
    boots = hprof_passes.boots(hprof.passes.by_process.group.tolist())
    named = [one | {"boot": boot} for one, boot in zip(asked, boots, strict=True)]
    return hprof_passes.pass_table(named, numbers.tolist(), windows, ubatches)


def ubatch_table(hprof: HprofRanges, work: Projection) -> pa.Table:
    """One row a ubatch: the host's start, and the end of its range or of its work if later."""
    ubatches, passes = hprof.ubatches, hprof.passes
    in_pass = innermost(passes.by_process, ubatches.by_process)
    named = [hprof.names[code] for code in ubatches.code.tolist()]
    names = [name for name in named if isinstance(name, UbatchName)]
    start, end = ubatches.spans.start, ubatches.spans.end
    ends = np.maximum(end, np.where(work.n_ops > 0, work.last_ns, end))
    return hprof_passes.ubatch_table(names, start, ends, in_pass, hprof.pass_names(), hprof.pass_ids().tolist())


def places_by_range_names(ranges: NvtxRanges, launches: LaunchingCalls) -> Places:
    """The layer and ubatch of each row by the innermost range around its launching call that names one."""
    # Arrow sifts: some traces have names by the 100,000.
    sifted = pc.match_substring_regex(ranges.texts, _ANY_WORD, ignore_case=True).fill_null(False)
    rows = np.flatnonzero(sifted.to_numpy(zero_copy_only=False))
    names = dict(zip(rows.tolist(), ranges.texts.take(pa.array(rows)).to_pylist(), strict=True))
    return Places(
        layer=_numbers_in_names(LAYER_NAME, names, ranges, launches),
        ubatch=_numbers_in_names(UBATCH_NAME, names, ranges, launches),
    )


def _numbers_in_names(
    pattern: re.Pattern[str], names: Mapping[int, str], ranges: NvtxRanges, launches: LaunchingCalls
) -> Int64 | None:
    number = absent(len(ranges.texts))
    for code, name in names.items():
        if (match := pattern.search(name)) is not None:
            number[code] = int(match.group(1))
    if is_absent(number).all():
        return None
    number = taken(number, ranges.name)
    mine = np.flatnonzero(is_known(number))
    if len(mine) == 0:
        return None
    return taken(number[mine], launches.gather(innermost(ranges.spans.take(mine), launches.calls)))
