"""Where in the work a row belongs (pass, phase, ubatch, layer, tensor), and which call of the host launched it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiler.arithmetic.joins import NONE
from profiler.importers.nsys.project import Spans
from profiler.importers.nsys.rows import Mask
from profiler.importers.nsys.tables import Int64


@dataclass(slots=True)
class Places:
    """One element a row, NULL (labels: ABSENT) where nothing says it; None where nothing says it of any row."""

    pass_id: Int64 | None = None
    phase: Int64 | None = None  # codes of rows.PHASES
    ubatch: Int64 | None = None
    layer: Int64 | None = None
    tensor: Int64 | None = None  # codes of Labels
    whole_bytes: Int64 | None = None
    in_copy_step: Mask | None = None
    in_compute_step: Mask | None = None


@dataclass(frozen=True, slots=True)
class Launches:
    """The host side of the rows: all CUDA calls as spans on their threads, and each row's call."""

    calls: Spans  # group: globalTid
    call: Int64  # for each row of the events: its row in `calls`, or NONE; a call is its own

    def gather(self, of_calls: Int64) -> Int64:
        """What was found for the calls, for each row; NONE where a row has no call."""
        if len(self.calls) == 0:
            return np.full(len(self.call), NONE)
        found: Int64 = np.append(of_calls, NONE)[self.call]  # NONE, -1, is the last place
        return found
