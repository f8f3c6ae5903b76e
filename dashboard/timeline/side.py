"""One side of the drawing (a pass) cut to its window, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dashboard.text import lane_label, short_lane_label
from dashboard.timeline.signatures import SIGNATURE_COLUMNS
from profiler.arithmetic.intervals import Int64, Intervals
from profiler.metrics.anchors import LayerStarts, Ubatch, layer_starts
from profiler.metrics.level_of_detail import bounded_window, busy_shares, exposed_shares
from profiler.metrics.timeline import Timeline, exposed_copies, rows_between

ROW_COLUMNS: Final = (*SIGNATURE_COLUMNS, "kind", "ubatch", "correlation_id", "waits_for")
_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Side:
    """One pass to draw. `wanted` is the stretch to show exactly where not all fits, ns after the line's origin."""

    title: str
    line: Timeline
    ubatches: Sequence[Ubatch] = ()
    wanted: tuple[int, int] | None = None


class CutSide:
    """A side's events that start in the longest window holding at most `limit` of them."""

    def __init__(self, side: Side, limit: int) -> None:
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
        """Busy and exposed shares of every bin and lane, 0..255, lane after lane."""
        found = {"busy": busy_shares(self._line, edges), "exposed": exposed_shares(self._line, edges)}
        # Rounded up, so that a lane that was busy at all never looks idle.
        return {f"{name}_share": np.ceil(values.ravel() * 255).astype(np.uint8) for name, values in found.items()}

    @cached_property
    def table(self) -> pa.Table:
        """ROW_COLUMNS of the events inside the window, in the order of `rows`."""
        return self._line.table(ROW_COLUMNS, self.rows)

    def header(self) -> dict[str, Any]:
        """What the browser needs to know beside the columns; counts, in the order of the columns."""
        lanes = [
            {
                **lane._asdict(),
                "label": lane_label(lane, self._line.lanes),
                "short": short_lane_label(lane, self._line.lanes),
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
            "ubatches": [[u.number, u.phase, u.n_tokens, u.policy, u.start_ns, u.end_ns] for u in self._side.ubatches],
        }


def _differences(values: Int64, counts: Sequence[int]) -> Int64:
    """Differences along the array, but the value itself where a lane begins; `counts` are the lanes' lengths."""
    differences = np.diff(values, prepend=0)
    begins = np.cumsum([0, *counts[:-1]]) if counts else _NOTHING
    begins = begins[begins < len(values)]
    differences[begins] = values[begins]
    return differences
