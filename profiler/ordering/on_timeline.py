"""Where a finding's two operations are among the recorded events, so that a drawing can mark them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from profiler.ordering.violation import OperationPlace, OrderingViolation

MATCHED_COLUMNS: Final = ("kind", "device", "stream", "ubatch", "layer", "name", "t_end")
"""What `marked_pairs` needs of events."""


class MarkedPair(NamedTuple):
    """Rows of the events that the operations are in; None: it was not recorded as an event, as what a thread does."""

    first: int | None
    second: int | None
    text: str


def marked_pairs(events: pa.Table, violations: Sequence[OrderingViolation]) -> list[MarkedPair]:
    """One a finding; `events` are MATCHED_COLUMNS of the one pass that the findings are in.

    Operations and events have the step's device, stream, ubatch, layer and name in common. Where several events do, the
    operation is in the first that ends after it was issued.
    """
    found = [(_row_of(events, one.first), _row_of(events, one.second), one) for one in violations]
    return [MarkedPair(first, second, str(one)) for first, second, one in found if (first, second) != (None, None)]


def _row_of(events: pa.Table, place: OperationPlace | None) -> int | None:
    if place is None or place.name is None:
        return None
    alike = pc.not_equal(events["kind"].cast(pa.string()), "wait")
    for name in ("device", "stream", "ubatch", "layer", "name"):
        column, wanted = events[name], getattr(place, name)
        column = column.cast(pa.string()) if isinstance(wanted, str) else column
        alike = pc.and_(alike, pc.is_null(column) if wanted is None else pc.equal(column, wanted))
    alike = pc.and_(alike, pc.greater_equal(events["t_end"], place.t_issued or 0))
    rows = pc.indices_nonzero(pc.fill_null(alike, False))
    if not len(rows):
        return None
    earliest = pc.index(ends := events["t_end"].take(rows), pc.min(ends))
    return int(rows[earliest.as_py()].as_py())
