"""Where in the work a row belongs: pass, phase, ubatch, layer and tensor, one element a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiler.importers.nsys.project import NONE, Spans
from profiler.importers.nsys.rows import ABSENT, Mask, Rows, kind_code
from profiler.importers.nsys.tables import NULL, Int64


@dataclass(slots=True)
class Places:
    """NULL (in label columns ABSENT) where nothing says it."""

    pass_id: Int64
    phase: Int64  # codes of rows.PHASES
    ubatch: Int64
    layer: Int64
    tensor: Int64  # codes of Labels
    whole_bytes: Int64
    in_copy_step: Mask
    in_compute_step: Mask

    @classmethod
    def unknown(cls, n_rows: int) -> Places:
        """Nothing known of any row."""
        null, absent = np.full(n_rows, NULL), np.full(n_rows, ABSENT)
        no = np.zeros(n_rows, np.bool_)
        return cls(null, absent, null.copy(), null.copy(), absent.copy(), null.copy(), no, no.copy())


@dataclass(frozen=True, slots=True)
class Launches:
    """The host side of the rows: all CUDA calls as spans on their threads, and each row's call."""

    calls: Spans  # group: globalTid
    call: Int64  # for each row of the events: its row in `calls`, or NONE

    def gather(self, of_calls: Int64) -> Int64:
        """What was found for the calls, for each row; NONE where a row has no call."""
        if len(self.calls) == 0:
            return np.full(len(self.call), NONE)
        return np.where(self.call == NONE, NONE, of_calls[np.maximum(self.call, 0)])


def launches_of(rows: Rows, calls: Rows, call: Int64) -> Launches:
    """`call` holds the row in `calls` that launched each row of `rows`, or NONE; a call launches itself."""
    own = np.flatnonzero(rows["kind"] == kind_code("api"))
    complete = call.copy()
    complete[own] = np.arange(len(own))
    return Launches(Spans(calls["thread"], calls["start"], calls["end"]), complete)
