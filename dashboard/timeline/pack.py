"""Packs timelines for the canvas: about 10 bytes an event, labels once, and busy shares where events were left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dashboard.timeline.columns import Variable, encode
from dashboard.timeline.side import CutSide, Side
from dashboard.timeline.signatures import signatures
from profiler.metrics.level_of_detail import bin_edges, joint_extent
from profiler.metrics.waits import waited_for

MAX_EVENTS: Final = 1_000_000  # over all sides, sent one by one
WINDOW_EVENTS: Final = 300_000  # of more than that, as many; the rest as busy shares, until the view moves there
MAX_BYTES: Final = 15_000_000
_MIN_EVENTS: Final = 1000
_EMPTY: Final = np.empty(0, np.int64)


def pack(
    sides: Sequence[Side],
    header: Mapping[str, Any],
    *,
    max_events: int = MAX_EVENTS,
    window_events: int = WINDOW_EVENTS,
    max_bytes: int = MAX_BYTES,
) -> bytes:
    """The sides as one block of bytes (see `columns`); `header` is passed on to the browser.

    Of sides with more than `max_events`, or that take more than `max_bytes`, only a stretch of time is sent exactly.
    """
    n_events = sum(len(side.line) for side in sides)
    limit = n_events if n_events <= max_events else window_events
    packed = _pack(sides, header, limit)
    while len(packed) > max_bytes and limit > _MIN_EVENTS:
        limit = int(limit * 0.95 * max_bytes / len(packed))
        packed = _pack(sides, header, limit)
    return packed


def _pack(sides: Sequence[Side], header: Mapping[str, Any], limit: int) -> bytes:
    n_events = sum(len(side.line) for side in sides)
    extent = joint_extent([side.line for side in sides])
    edges = bin_edges(extent)

    def cut(side: Side) -> tuple[CutSide, Mapping[str, np.ndarray]]:
        one = CutSide(side, limit * len(side.line) // max(n_events, 1))
        _ = one.table  # read here, while the other side is
        return one, one.shares(edges)

    # Sorting and summing millions of numbers leaves the other side's thread free to run.
    with ThreadPoolExecutor(max_workers=2) as pool:
        cuts, shares = zip(*pool.map(cut, sides), strict=True)
    tables = [one.table for one in cuts]
    rows = pa.concat_tables(tables).unify_dictionaries()
    found, texts = signatures(rows)
    columns: dict[str, np.ndarray | Variable] = {
        **{name: Variable.of(times) for name, times in _joined([one.times() for one in cuts]).items()},
        **_joined(shares),
        **found,
        **_links(tables),
        **_runs(rows),
        **_layer_starts(cuts),
    }
    facts = {"extent": extent, "texts": texts, "sides": [one.header() for one in cuts]}
    return encode({**header, **facts}, columns)


def _joined(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _links(tables: Sequence[pa.Table]) -> dict[str, Variable]:
    """Which event waits for which copy, as numbers over all sides, in rising order of the waiting one."""
    waiting, copies, first = [_EMPTY], [_EMPTY], 0
    for table in tables:
        copy, waiter = waited_for(table)
        copies.append(copy + first)
        waiting.append(waiter + first)
        first += table.num_rows
    return {
        "waiting": Variable.of_differences(np.concatenate(waiting)),
        "waited_copy": Variable.of_differences(np.concatenate(copies)),
    }


def _runs(rows: pa.Table) -> dict[str, np.ndarray]:
    """Each event's ubatch, as runs of equal ones: a lane passes through the ubatches in order."""
    ubatch = pc.fill_null(rows["ubatch"], -1).to_numpy()
    begins = np.flatnonzero(np.diff(ubatch, prepend=ubatch[:1] - 1))
    return {"run_begin": begins.astype(np.uint32), "run_ubatch": ubatch[begins].astype(np.int32)}


def _layer_starts(cuts: Sequence[CutSide]) -> dict[str, np.ndarray]:
    starts = [cut.layer_starts for cut in cuts]
    return {
        "layer_start_ubatch": np.concatenate([s.ubatch for s in starts]).astype(np.int32),
        "layer_start_layer": np.concatenate([s.layer for s in starts]).astype(np.int32),
        "layer_start_ns": np.concatenate([s.start_ns for s in starts]).astype(np.float64),
    }
