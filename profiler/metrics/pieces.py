"""Runs the overlap engine over a capture's events: pieces of whole passes that fit a processor's cache, on all cores.

Where each pass has a clock of its own (hprof's captures) the pieces stay apart. Where all rows lie on one clock, as in
imports, the pieces' groups are joined again, for work of one pass may hide the copies of another.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from executor.arrays import Floats, Int64
from profiler.arithmetic.groups import concatenated
from profiler.metrics.events import Events
from profiler.metrics.overlap import DEVICE, LAYER_KEYS, PHASE_KEYS, Activity, Overlap, OverlapIndex, PassWindows
from profiler.metrics.transfers import StreamSums, Transfers
from profiler.schema import COPIES, EVENTS

_PIECE_ROWS: Final = 1 << 17  # int64 columns of this length stay in a level-2 cache
_MANY_ROWS: Final = 1_000_000
_DEVICE_KEYS: Final = (*DEVICE, "role")
_MAX_THREADS: Final = 4
_Summed = TypeVar("_Summed", Overlap, Transfers)
Item = TypeVar("Item")
Result = TypeVar("Result")


class _Piece(NamedTuple):
    activity: Activity
    overlap: OverlapIndex


class OverlapByPass:
    """What the events say, ready to be grouped. `tables` hold EVENT_COLUMNS; no pass may be spread over two.

    by_layer: ubatches and layers can be asked for too; without them it takes half the time.
    one_clock: the windows of the passes of a capture whose rows all lie on one clock; see `OverlapIndex`.
    tells_copies: whether no copy among the events means that none was made; tells_devices: whether devices were seen.
    tells_times: whether how long passes and ubatches took may be told; not where recording cost them time.
    """

    def __init__(
        self,
        tables: Iterable[pa.Table],
        *,
        by_layer: bool = True,
        one_clock: PassWindows | None = None,
        tells_copies: bool = True,
        tells_devices: bool = True,
        tells_times: bool = True,
    ) -> None:
        self.n_rows = 0
        self.n_impossible = 0  # rows left out: no times, an end before its start, times beyond 104 days
        self._pieces: list[_Piece] = []
        self._overlaps: dict[tuple[str, ...], Overlap] = {}
        found: list[Activity] = []
        self.tells_copies, self.tells_devices, self.tells_times = tells_copies, tells_devices, tells_times
        measured = partial(_measured, names=LAYER_KEYS if by_layer else PHASE_KEYS, has_own_clocks=one_clock is None)
        for n_rows, n_impossible, activity, overlap in _in_threads(measured, _sized(tables)):
            self.n_rows += n_rows
            self.n_impossible += n_impossible
            found.append(activity)
            if overlap is not None:
                self._pieces.append(_Piece(activity, overlap))
        if self.n_rows >= _MANY_ROWS:
            pa.default_memory_pool().release_unused()  # of 10 M rows Arrow would keep 0.8 GB that nothing else can have
        if one_clock is not None:
            whole = Activity.joined(found)
            found.clear()
            self._pieces = [_Piece(whole, OverlapIndex(whole, one_clock))]

    @property
    def streams(self) -> list[StreamSums]:
        """Counts and bytes by stream; a stream has one entry in each piece."""
        return [entry for piece in self._pieces for entry in piece.activity.streams]

    def keys(self, *names: str) -> tuple[Int64, ...]:
        """Columns of the fine groups' keys over all of them."""
        return tuple(np.concatenate([piece.activity.keys[name] for piece in self._pieces]) for name in names)

    def overlap(self, names: Sequence[str]) -> Overlap:
        """Host to device copies against compute, grouped by these names, 'pass_id' among them; kept."""
        if (key := tuple(names)) not in self._overlaps:
            self._overlaps[key] = _joined([piece.overlap.by(key) for piece in self._pieces])
        return self._overlaps[key]

    def transfers(self, names: Sequence[str]) -> Transfers:
        """Bytes moved, grouped by these names, 'pass_id' among them."""
        return _joined([piece.activity.transfers.by(names) for piece in self._pieces])

    def busy(self, names: Sequence[str], role: int) -> tuple[dict[str, Int64], Int64]:
        """Groups that have rows of this role (their keys), and the union of those rows in ns; with 'pass_id'."""
        found = []
        for activity in (piece.activity for piece in self._pieces):
            if role not in activity.roles:
                found.append({name: np.empty(0, np.int64) for name in (*names, "")})
                continue
            groups = activity.coarse(names)
            has_rows = groups.sum(activity.keys["role"] == role) > 0
            columns = {**groups.keys, "": activity.busy_ns(groups, role)}
            found.append({name: values[has_rows] for name, values in columns.items()})
        joined = concatenated(found)
        return joined, joined.pop("")

    def idle(self, pass_id: Int64, starts: Int64, ends: Int64) -> Floats:
        """Idle ns inside windows of passes, summed over devices; NaN where a pass has no device rows."""
        idle = np.full(len(pass_id), np.nan)
        for piece in self._pieces:
            found = piece.overlap.idle_ns(pass_id, starts, ends)
            idle = np.where(np.isnan(idle), found, idle)
        return idle

    def device_overlap(self) -> Overlap:
        """All copies by (process, device, role): unions over the capture; of passes on own clocks, added up."""
        return _joined([piece.overlap.by(_DEVICE_KEYS, COPIES) for piece in self._pieces]).regroup(_DEVICE_KEYS)


def _measured(
    table: pa.Table, names: Sequence[str], has_own_clocks: bool
) -> tuple[int, int, Activity, OverlapIndex | None]:
    """Rows, impossible ones among them, and what was made of them; in a thread, beside other pieces."""
    events = Events.from_table(table)
    activity = Activity.of(events, names)
    return len(events), events.n_impossible, activity, OverlapIndex(activity) if has_own_clocks else None


def _in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`map` on all cores (numpy lets go of the interpreter), never far ahead of the consumer."""
    n_threads = min(os.cpu_count() or 1, _MAX_THREADS)
    with ThreadPoolExecutor(n_threads) as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > n_threads:
                yield waiting.popleft().result()
        yield from (future.result() for future in waiting)


def _sized(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Small tables joined and large ones cut between passes, to pieces of about _PIECE_ROWS; at least one piece."""
    waiting, n_rows, is_first = [EVENTS.empty_table()], 0, True
    for table in tables:
        for piece in _cut(table):
            waiting.append(piece)
            n_rows += piece.num_rows
            if n_rows >= _PIECE_ROWS:
                yield _one(waiting)
                waiting, n_rows, is_first = [], 0, False
    if n_rows or is_first:
        yield _one(waiting)


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    """Slices of whole passes; the table itself where its passes are not one after the other, or rows have none."""
    pass_id = table["pass_id"]
    numbers = pass_id.to_numpy() if table.num_rows > _PIECE_ROWS and not pass_id.null_count else np.empty(0, np.int32)
    steps = np.diff(numbers)
    if not steps.any() or (steps < 0).any():
        yield table
        return
    borders = np.flatnonzero(steps) + 1
    wanted = np.arange(_PIECE_ROWS, table.num_rows, _PIECE_ROWS)
    cuts = np.unique(borders[np.minimum(np.searchsorted(borders, wanted), len(borders) - 1)])
    for start, end in itertools.pairwise([0, *cuts.tolist(), table.num_rows]):
        yield table.slice(start, end - start)


def _one(tables: list[pa.Table]) -> pa.Table:
    last = tables[-1]
    return pa.concat_tables([table.select(last.column_names) for table in tables])


def _joined(parts: Sequence[_Summed]) -> _Summed:
    kind = type(parts[0])
    columns: dict[str, Any] = {"keys": concatenated([part.keys for part in parts])}
    for name in [field.name for field in fields(kind)][1:]:
        columns[name] = np.concatenate([getattr(part, name) for part in parts])
    return kind(**columns)
