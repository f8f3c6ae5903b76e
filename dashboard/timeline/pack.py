"""Packs timelines for the canvas: about 10 bytes an event. What events have in common is written once; each pass is
cut to its window; outside it the browser gets busy shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dashboard.timeline.columns import VarintColumn, encode, smallest_unsigned
from executor.arrays import Int64
from executor.units import shortened
from profiler.arithmetic.groups import concatenated, group_by
from profiler.arithmetic.intervals import Intervals
from profiler.metrics.lane_titles import lane_title, short_lane_title
from profiler.metrics.timeline import Timeline, exposed_copies, rows_between
from profiler.metrics.timeline_detail import (
    LayerStarts,
    UbatchSpan,
    bin_edges,
    bounded_window,
    busy_shares,
    exposed_shares,
    joint_extent,
    layer_starts,
    waited_for,
)
from profiler.ordering.on_timeline import MarkedPair
from profiler.plain_text import printable
from profiler.schema import label_codes

MAX_EVENTS: Final = 1_000_000  # over all sides, sent one by one
WINDOW_EVENTS: Final = 300_000  # of more than that, as many; the rest as busy shares, until the view moves there
MAX_BYTES: Final = 15_000_000
FULL_SHARE: Final = 65535  # so fine that bins of little work still add up (04_coverage.js)
_MIN_EVENTS: Final = 1000
_LABELS: Final = ("name", "tensor", "source_memory", "detail")
_NUMBERS: Final = ("layer", "n_tokens", "n_experts", "slot", "bytes", "whole_bytes")
SIGNATURE_COLUMNS: Final = (*_LABELS, *_NUMBERS)
MAX_LABEL_CHARS: Final = 300  # kernels of template libraries have names of many kilobytes
ROW_COLUMNS: Final = (*SIGNATURE_COLUMNS, "kind", "ubatch", "correlation_id", "waits_for")
_ABSENT: Final = -1
_NOTHING: Final = np.empty(0, np.int64)


def signatures(rows: pa.Table) -> tuple[dict[str, np.ndarray], list[str]]:
    """`signature` (one number a row), a column `of_NAME` for each of SIGNATURE_COLUMNS, and the texts they index.

    Null is -1. Texts longer than MAX_LABEL_CHARS are cut, with an ellipsis.
    """
    columns: dict[str, np.ndarray] = {}
    texts: list[str] = []
    for name in _LABELS:
        codes, names = label_codes(rows[name])
        used = np.zeros(len(names) + 1, np.bool_)  # null is -1, the last
        used[codes] = True
        used[-1] = False
        places = np.where(used, np.cumsum(used) - 1 + len(texts), _ABSENT)
        texts += [_short(names[code]) for code in np.flatnonzero(used).tolist()]
        columns[name] = places[codes]
    for name in _NUMBERS:
        columns[name] = pc.fill_null(rows[name], _ABSENT).to_numpy()
    groups = group_by(columns)
    found = {"signature": smallest_unsigned(groups.of_row)}
    found |= {f"of_{name}": _typed(name, groups.keys[name]) for name in SIGNATURE_COLUMNS}
    return found, texts


def _typed(name: str, values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64 if name in ("bytes", "whole_bytes") else np.int32)


def _short(text: str) -> str:
    return printable(shortened(text, MAX_LABEL_CHARS))


@dataclass(frozen=True, slots=True)
class PassToDraw:
    """One pass to draw. `wanted` is the stretch to show exactly where not all fits, ns after the line's origin."""

    title: str
    line: Timeline
    ubatches: Sequence[UbatchSpan] = ()
    wanted: tuple[int, int] | None = None
    first_token_ns: int | None = None
    """When the first token was known, ns after the line's origin."""
    marks: Sequence[MarkedPair] = ()
    """Pairs of sorted rows of the line that are out of order."""


class DrawnWindow:
    """A side's events that start in the longest window holding at most `limit` of them."""

    def __init__(self, side: PassToDraw, limit: int) -> None:
        self._side, self._line = side, side.line
        self.window = bounded_window(side.line, limit, side.wanted)
        self._slices = [rows_between(side.line, lane, self.window) for lane in range(len(side.line.lanes))]
        self.rows: Int64 = np.concatenate([_NOTHING, *(np.arange(s.start, s.stop) for s in self._slices)])
        self.starts, self.ends = side.line.start[self.rows], side.line.end[self.rows]
        self.base_ns = int(self.starts.min()) if len(self.rows) else 0

    @cached_property
    def exposed(self) -> list[Intervals]:
        """Exposed copy of each lane inside the window; lanes without copies have none."""
        none = Intervals(_NOTHING, _NOTHING)
        found = [exposed_copies(self._line, lane, self.window) for lane in range(len(self._slices))]
        return [none if intervals is None else intervals for intervals in found]

    @cached_property
    def layer_starts(self) -> LayerStarts:
        """Where layers start inside the window."""
        return layer_starts(self._line, self.rows, self.table)

    def times(self) -> dict[str, np.ndarray]:
        """Starts as differences inside each lane (the first from `base_ns`), and lengths, in ns."""
        exposed_starts, exposed_ends = (np.concatenate([_NOTHING, *(e[edge] for e in self.exposed)]) for edge in (0, 1))
        # The first may begin before the first event: its copy does, but it is shown with the window.
        exposed_starts = np.maximum(exposed_starts, self.base_ns)
        return {
            "delta": _differences(self.starts - self.base_ns, [s.stop - s.start for s in self._slices]),
            "length": self.ends - self.starts,
            "exposed_delta": _differences(exposed_starts - self.base_ns, [len(e.starts) for e in self.exposed]),
            "exposed_length": np.maximum(exposed_ends - exposed_starts, 0),
        }

    def shares(self, edges: Int64) -> dict[str, np.ndarray]:
        """Busy and exposed shares of every bin and lane, 0..FULL_SHARE, lane after lane."""
        found = {"busy": busy_shares(self._line, edges), "exposed": exposed_shares(self._line, edges)}
        # Rounded up, so that a lane that was busy at all never looks idle.
        return {
            f"{name}_share": np.ceil(values.ravel() * FULL_SHARE).astype(np.uint16) for name, values in found.items()
        }

    @cached_property
    def table(self) -> pa.Table:
        """ROW_COLUMNS of the events inside the window, in the order of `rows`."""
        return self._line.table(ROW_COLUMNS, self.rows)

    def header(self) -> dict[str, Any]:
        """What the browser needs to know beside the columns; counts, in the order of the columns."""
        lanes = [
            {
                **lane._asdict(),
                "label": lane_title(lane, self._line.lanes),
                "short": short_lane_title(lane, self._line.lanes),
                "in_group": lane_title(lane, [lane]),
                "events": s.stop - s.start,
                "all_events": int(np.diff(self._line.first)[i]),
                "exposed": len(e.starts),
            }
            for i, (lane, s, e) in enumerate(zip(self._line.lanes, self._slices, self.exposed, strict=True))
        ]
        return {
            "title": self._side.title,
            "lanes": lanes,
            "base_ns": self.base_ns,
            "window": self.window,
            "extent": self._line.extent,
            "layer_starts": len(self.layer_starts.layer),
            "marks": [[self._place(m.first), self._place(m.second), m.text] for m in self._side.marks],
            "first_token_ns": self._side.first_token_ns,
            "ubatches": [[u.number, u.phase, u.n_tokens, u.policy, u.start_ns, u.end_ns] for u in self._side.ubatches],
        }

    def _place(self, row: int | None) -> int | None:
        """The place of a row of the line among `rows`; None where the window does not hold it."""
        at = np.flatnonzero(self.rows == row) if row is not None else _NOTHING
        return int(at[0]) if len(at) else None


def _differences(values: Int64, counts: Sequence[int]) -> Int64:
    """Differences along the array, but the value itself where a lane begins; `counts` are the lanes' lengths."""
    differences = np.diff(values, prepend=0)
    begins = np.cumsum([0, *counts[:-1]]) if counts else _NOTHING
    begins = begins[begins < len(values)]
    differences[begins] = values[begins]
    return differences


def pack(
    sides: Sequence[PassToDraw],
    header: Mapping[str, object],
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


def _pack(sides: Sequence[PassToDraw], header: Mapping[str, object], limit: int) -> bytes:
    n_events = sum(len(side.line) for side in sides)
    extent = joint_extent([side.line for side in sides])
    edges = bin_edges(extent)

    def cut(side: PassToDraw) -> tuple[DrawnWindow, Mapping[str, np.ndarray]]:
        one = DrawnWindow(side, limit * len(side.line) // max(n_events, 1))
        _ = one.table  # read here, while the other side is
        return one, one.shares(edges)

    # Sorting and summing millions of numbers leaves the other side's thread free to run.
    with ThreadPoolExecutor(max_workers=2) as pool:
        cuts, shares = zip(*pool.map(cut, sides), strict=True)
    tables = [one.table for one in cuts]
    rows = pa.concat_tables(tables).unify_dictionaries()
    found, texts = signatures(rows)
    columns: dict[str, np.ndarray | VarintColumn] = {
        **{name: VarintColumn.of(times) for name, times in concatenated([one.times() for one in cuts]).items()},
        **concatenated(shares),
        **found,
        **_links(tables),
        **_runs(rows),
        **_layer_starts(cuts),
    }
    facts = {"extent": extent, "texts": texts, "sides": [one.header() for one in cuts]}
    return encode({**header, **facts}, columns)


def _links(tables: Sequence[pa.Table]) -> dict[str, VarintColumn]:
    """Which event waits for which copy, as numbers over all sides, in rising order of the waiting one."""
    waiting, copies, first = [_NOTHING], [_NOTHING], 0
    for table in tables:
        copy, waiter = waited_for(table)
        copies.append(copy + first)
        waiting.append(waiter + first)
        first += table.num_rows
    return {
        "waiting": VarintColumn.of_differences(np.concatenate(waiting)),
        "waited_copy": VarintColumn.of_differences(np.concatenate(copies)),
    }


def _runs(rows: pa.Table) -> dict[str, np.ndarray]:
    """Each event's ubatch, as runs of equal ones: a lane passes through the ubatches in order."""
    ubatch = pc.fill_null(rows["ubatch"], -1).to_numpy()
    begins = np.flatnonzero(np.diff(ubatch, prepend=ubatch[:1] - 1))
    return {"run_begin": begins.astype(np.uint32), "run_ubatch": ubatch[begins].astype(np.int32)}


def _layer_starts(cuts: Sequence[DrawnWindow]) -> dict[str, np.ndarray]:
    starts = [cut.layer_starts for cut in cuts]
    return {
        "layer_start_ubatch": np.concatenate([s.ubatch for s in starts]).astype(np.int32),
        "layer_start_layer": np.concatenate([s.layer for s in starts]).astype(np.int32),
        "layer_start_ns": np.concatenate([s.start_ns for s in starts]).astype(np.float64),
    }
