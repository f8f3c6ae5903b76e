"""Copies that the last layers of a ubatch issue for the first layers of the next one.

Their range nests in the ubatch that issues them, so its name would say the wrong one. Layers are computed in
order: a copy for a layer that lies before one already computed in this ubatch belongs to the next ubatch.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from executor.tracing.nvtx_names import StepName
from profiler.arithmetic.intervals import Line
from profiler.arithmetic.joins import NONE
from profiler.importers.nsys.hprof_ranges import HprofRanges
from profiler.importers.nsys.places import Launches
from profiler.importers.nsys.project import innermost
from profiler.importers.nsys.rows import look_up
from profiler.importers.nsys.tables import NULL, Int64

_LAYERS: Final = 1 << 32


def ubatch_served(hprof: HprofRanges, launches: Launches, ubatch: Int64, copied_layer: Int64) -> Int64:
    """The row of the ubatch range that each row works for.

    ubatch: the range that each row was issued in, or NONE. copied_layer: the layer of rows that are copies of a
    step, NULL for all others.
    """
    copies = np.flatnonzero((ubatch != NONE) & (copied_layer != NULL) & (launches.call != NONE))
    computed = _computed_before(hprof, ubatch[copies], launches.calls.start[launches.call[copies]])
    ahead = copies[(computed != NULL) & (computed > copied_layer[copies])]
    served = ubatch.copy()
    served[ahead] = _next(hprof)[ubatch[ahead]]
    return served


def _computed_before(hprof: HprofRanges, ubatch: Int64, at: Int64) -> Int64:
    """The highest layer whose computing the ubatch had issued before each time, NULL for none."""
    layers = hprof.values(lambda n: n.layer if isinstance(n, StepName) and n.tensor is None else None)
    layer = look_up(layers, hprof.steps.code, NULL)
    steps = np.flatnonzero(layer != NULL)
    spans = hprof.steps.spans.take(steps)
    within = innermost(hprof.ubatches.spans, spans)
    known = within != NONE
    within, start, layer = within[known], spans.start[known], layer[steps][known]
    if len(within) == 0 or len(ubatch) == 0:
        return np.full(len(ubatch), NULL)
    groups, times = np.concatenate([within, ubatch]), np.concatenate([start, at])
    line = Line(groups, times, times, len(hprof.ubatches))
    position = line.place(within, start)
    order = np.argsort(position, kind="stable")
    # One running maximum serves all ubatches, as later ones count from a higher base.
    highest = np.maximum.accumulate(within[order] * _LAYERS + layer[order])
    before = np.searchsorted(position[order], line.place(ubatch, at)) - 1
    found = look_up(highest, before, NULL)
    return np.where((found != NULL) & (found // _LAYERS == ubatch), found % _LAYERS, NULL)


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
