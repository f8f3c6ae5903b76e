"""The tables that metrics need, read from a capture with only the columns that they use."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from executor.errors import HprofError
from profiler.arithmetic.intervals import MAX_ABS_NS
from profiler.metrics.events import EVENT_COLUMNS
from profiler.metrics.experts import EXPERT_COLUMNS
from profiler.metrics.recording import Recording

if TYPE_CHECKING:
    from profiler.capture import Capture


class Tables(NamedTuple):
    """What `pass_figures` takes, in its order. `passes` come in the order of the run."""

    passes: pa.Table
    recording: Recording
    experts: pa.Table
    ubatches: pa.Table


def load_tables(
    capture: Capture,
    pass_ids: Collection[int] | None = None,
    *,
    with_events: bool = True,
    by_layer: bool = True,
) -> Tables:
    """Read them; `pass_ids` limits all of them to some passes. Raises HprofError for a damaged capture.

    Without events, which in large captures take longest, figures that are made of them are null; times and memory,
    which a pass tells itself, are the same. Not by layer, figures of passes and their phases take half the time, and
    those of ubatches and layers cannot be asked for.
    """
    passes = _with_possible_times(capture.table("passes", pass_ids=pass_ids)).sort_by(
        [("order", "ascending"), ("pass_id", "ascending")]
    )
    if passes["pass_id"].null_count or len(pc.unique(passes["pass_id"])) != passes.num_rows:
        raise HprofError(f"two passes of {capture.path} share a number, or one has none; capture again.")
    return Tables(
        passes,
        Recording(_event_tables(capture, pass_ids) if with_events else [], by_layer=by_layer),
        capture.table("experts", EXPERT_COLUMNS, pass_ids=pass_ids),
        _with_possible_times(capture.table("ubatches", pass_ids=pass_ids)),
    )


def _with_possible_times(table: pa.Table) -> pa.Table:
    """Null for both ends of windows that end before they start, or lie beyond what metrics can add up."""
    start, end = table["t_start"], table["t_end"]
    in_range = pc.and_(pc.greater_equal(start, -MAX_ABS_NS), pc.less_equal(end, MAX_ABS_NS))
    possible = pc.and_(in_range, pc.greater_equal(end, start))
    for name in ("t_start", "t_end"):
        column = pc.if_else(possible, table[name], pa.scalar(None, pa.int64()))
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _event_tables(capture: Capture, pass_ids: Collection[int] | None) -> Iterable[pa.Table]:
    """hprof writes each pass as a part of its own; in other captures a pass may go on in the next part."""
    if capture.manifest.source == "hprof":
        return capture.tables("events", EVENT_COLUMNS, pass_ids=pass_ids)
    return [capture.table("events", EVENT_COLUMNS, pass_ids=pass_ids)]
