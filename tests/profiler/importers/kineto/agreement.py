"""hprof's own recording of a pass and torch.profiler's of the same pass, held against each other.

What differs by nature: hprof records a step's compute as one interval, so the 1 to 25 us that CUDA leaves between two
kernels are in it; and a mark on an idle stream is reached at once, while the work behind it starts when the host has
issued it. Both show at the start of a pass only, before the host runs ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from executor.passes import EventRecord
from profiler.arithmetic.intervals import Intervals, intersect, union

CLOSE_NS: Final = 20_000
KERNEL_GAP_NS: Final = 25_000
FIRST_ISSUE_NS: Final = 500_000


@dataclass(frozen=True)
class Recorded:
    """One pass: hprof's events and bytes, and the imported rows of the same pass."""

    native: Sequence[EventRecord]
    bytes_h2d: int
    rows: pa.Table

    def of_native(self, kind: str) -> list[EventRecord]:
        return sorted((event for event in self.native if event.kind == kind), key=lambda event: event.t_start)

    def of_rows(self, kind: str) -> list[dict[str, Any]]:
        rows = self.rows.select(["kind", "t_start", "t_end", "bytes", "detail"]).to_pylist()
        return sorted((r for r in rows if r["kind"] == kind and r["detail"] is None), key=lambda row: row["t_start"])

    def weight_copies(self) -> list[tuple[EventRecord, list[dict[str, Any]]]]:
        """Each copy of hprof's with the rows that torch.profiler has for it: a step may copy several tensors."""
        smallest = min(event.bytes or 0 for event in self.of_native("h2d")) // 64
        seen = iter([row for row in self.of_rows("h2d") if row["bytes"] >= smallest])
        pairs = []
        for event in self.of_native("h2d"):
            group = [next(seen)]
            while sum(row["bytes"] for row in group) < (event.bytes or 0):
                group.append(next(seen))
            pairs.append((event, group))
        assert next(seen, None) is None, "torch.profiler saw weight copies that hprof did not record"
        return pairs

    def shift_ns(self) -> int:
        """From hprof's clock to torch.profiler's."""
        return int(np.median([group[0]["t_start"] - event.t_start for event, group in self.weight_copies()]))


def assert_same_bytes(recorded: Recorded, n_copies: int) -> None:
    """Every copy moved the same bytes, and all of them what the pass says."""
    pairs = recorded.weight_copies()
    assert len(pairs) == n_copies
    assert [sum(row["bytes"] for row in group) for _, group in pairs] == [event.bytes for event, _ in pairs]
    assert sum(event.bytes or 0 for event, _ in pairs) == recorded.bytes_h2d


def assert_close_intervals(recorded: Recorded) -> None:
    """Starts and ends lie within 20 us of each other; the first copy of the pass may start with its issue."""
    shift, pairs = recorded.shift_ns(), recorded.weight_copies()
    starts = [group[0]["t_start"] - event.t_start - shift for event, group in pairs]
    ends = [group[-1]["t_end"] - event.t_end - shift for event, group in pairs]
    assert np.abs(starts[1:]).max() <= CLOSE_NS, starts
    assert np.abs(ends).max() <= CLOSE_NS, ends
    assert -CLOSE_NS <= starts[0] <= FIRST_ISSUE_NS, starts


def hidden_shares(recorded: Recorded) -> tuple[float, float]:
    """Hidden / busy copy by hprof's events and by torch.profiler's rows, from the first layer's FFN on."""
    shift = recorded.shift_ns()
    compute = recorded.of_native("compute")
    begin = min(event.t_start for event in compute if event.name == "ffn") + shift
    window = Intervals(np.array([begin]), np.array([begin + 10**12]))
    seen = [row for _, group in recorded.weight_copies() for row in group]
    kernels = [(row["t_start"], row["t_end"]) for row in recorded.of_rows("compute")]
    steps = _union([(event.t_start + shift, event.t_end + shift) for event in compute])
    spans = intersect(_union([(start, end + KERNEL_GAP_NS) for start, end in kernels]), steps)
    copies = _union([(event.t_start + shift, event.t_end + shift) for event, _ in recorded.weight_copies()])
    return _hidden(copies, steps, window), _hidden(_union([(r["t_start"], r["t_end"]) for r in seen]), spans, window)


def _hidden(copies: Intervals, compute: Intervals, window: Intervals) -> float:
    inside = intersect(copies, window)
    return intersect(inside, compute).total / inside.total


def _union(spans: Sequence[tuple[int, int]]) -> Intervals:
    edges = np.array(spans, np.int64).reshape(-1, 2)
    return union(edges[:, 0], edges[:, 1])
