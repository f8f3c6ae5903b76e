"""Which work waited for which copy, as the executor recorded it (`waits_for` names a copy's `correlation_id`)."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profiler.arithmetic.intervals import Int64

_COPIES: Final = ("h2d", "d2h", "d2d")


def waited_for(rows: pa.Table) -> tuple[Int64, Int64]:
    """Pairs (row of a copy, row that waited for it), in the order of the waiting rows.

    rows: columns kind, correlation_id and waits_for of one pass; copy numbers are unique inside a pass.
    """
    is_copy = pc.is_in(rows["kind"].cast(pa.string()), pa.array(_COPIES)).to_numpy()
    numbers, wanted = (pc.fill_null(rows[name], -1).to_numpy() for name in ("correlation_id", "waits_for"))
    copies, waiting = np.flatnonzero(is_copy & (numbers >= 0)), np.flatnonzero(wanted >= 0)
    if len(copies) == 0:
        return copies, copies
    copies = copies[np.argsort(numbers[copies], kind="stable")]
    place = np.minimum(np.searchsorted(numbers[copies], wanted[waiting]), len(copies) - 1)
    found = numbers[copies[place]] == wanted[waiting]
    return copies[place[found]], waiting[found]
