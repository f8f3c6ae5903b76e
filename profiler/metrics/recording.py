"""The activity of a whole capture, held in pieces of whole passes that fit a processor's cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from profiler.intervals import Int64
from profiler.metrics.activity import Activity
from profiler.metrics.events import Events
from profiler.metrics.groups import Floats
from profiler.metrics.overlap import Overlap, OverlapIndex
from profiler.metrics.roles import COPIES
from profiler.metrics.streams import StreamSums
from profiler.metrics.transfers import Transfers
from profiler.schema import EVENTS

_PIECE_ROWS: Final = 1 << 17  # int64 columns of this length stay in a level-2 cache
_DEVICE_KEYS: Final = ("process", "device", "role")
Figures = TypeVar("Figures", Overlap, Transfers)


class Recording:
    """What the events say, ready to be grouped. `tables` hold EVENT_COLUMNS; no pass may be spread over two."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self.n_rows = 0
        self.n_impossible = 0  # rows left out: no times, an end before its start, times beyond 104 days
        self._pieces: list[Activity] = []
        for table in _gathered(tables):
            events = Events.from_table(table)
            self.n_rows += len(events)
            self.n_impossible += events.n_impossible
            self._pieces.append(Activity(events))

    @property
    def streams(self) -> list[StreamSums]:
        """Counts and bytes by stream; a stream has one entry in each piece."""
        return [entry for piece in self._pieces for entry in piece.streams]

    def keys(self, *names: str) -> tuple[Int64, ...]:
        """Columns of `activity.KEYS` over all fine groups."""
        return tuple(np.concatenate([piece.keys[name] for piece in self._pieces]) for name in names)

    def overlap(self, names: Sequence[str]) -> Overlap:
        """Host to device copies against compute, grouped by these names, 'pass_id' among them."""
        return _joined([piece.overlap.by(names) for piece in self._pieces])

    def transfers(self, names: Sequence[str]) -> Transfers:
        """Bytes moved, grouped by these names, 'pass_id' among them."""
        return _joined([piece.transfers.by(names) for piece in self._pieces])

    def busy(self, names: Sequence[str], role: int) -> tuple[dict[str, Int64], Int64]:
        """Groups that have rows of this role (their keys), and the union of those rows in ns; with 'pass_id'."""
        found = []
        for piece in self._pieces:
            groups = piece.coarse(names)
            has_rows = groups.sum(piece.keys["role"] == role) > 0
            columns = {**groups.keys, "": piece.busy_ns(groups, role)}
            found.append({name: values[has_rows] for name, values in columns.items()})
        joined = _joined_columns(found)
        return joined, joined.pop("")

    def idle(self, pass_id: Int64, starts: Int64, ends: Int64) -> Floats:
        """Idle ns inside windows of passes, summed over devices; NaN where a pass has no device rows."""
        idle = np.full(len(pass_id), np.nan)
        for piece in self._pieces:
            found = piece.idle.inside(pass_id, starts, ends)
            idle = np.where(np.isnan(idle), found, idle)
        return idle

    def device_overlap(self, *, by_pass: bool) -> Overlap:
        """All copies by (process, device, role) against compute of the same pass and device, or of the device."""
        if by_pass:
            parts = [piece.overlap.by(_DEVICE_KEYS, COPIES) for piece in self._pieces]
            return _joined(parts).regroup(_DEVICE_KEYS)
        if len(self._pieces) != 1:
            raise ValueError("overlap across passes needs all events in one table")
        return OverlapIndex(self._pieces[0], _DEVICE_KEYS[:2]).by(_DEVICE_KEYS, COPIES)


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Small tables put together, so that the cost of a piece is shared by many rows; at least one table."""
    waiting, n_rows = [EVENTS.empty_table()], 0
    is_first = True
    for table in tables:
        waiting.append(table)
        n_rows += table.num_rows
        if n_rows >= _PIECE_ROWS:
            yield _one(waiting)
            waiting, n_rows, is_first = [], 0, False
    if n_rows or is_first:
        yield _one(waiting)


def _one(tables: list[pa.Table]) -> pa.Table:
    last = tables[-1]
    return pa.concat_tables([table.select(last.column_names) for table in tables])


def _joined(parts: Sequence[Figures]) -> Figures:
    kind = type(parts[0])
    columns: dict[str, Any] = {"keys": _joined_columns([part.keys for part in parts])}
    for name in [field.name for field in fields(kind)][1:]:
        columns[name] = np.concatenate([getattr(part, name) for part in parts])
    return kind(**columns)


def _joined_columns(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
