"""Which of a recorded llama-bench's work belongs to which repetition of which test.

`--progress` makes it say on stderr when a repetition begins, and its rows say how long each took. `repetition_starts`
finds the gaps between which that lies, where they are certain; the work between them is the repetition's.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from profiler.arithmetic.intervals import Intervals, union
from profiler.engines.repetition_starts import Told, repetition_starts
from profiler.importers.base import Imported
from profiler.importers.hprof_passes import with_bytes_h2d
from profiler.importers.llama_bench.rows import BenchRow
from profiler.importers.unnamed import count_in_passes
from profiler.schema import DEVICE_WORK, EVENTS, PASSES, has_role

_LINE: Final = re.compile(rb"benchmark (\d{1,6})/\d+: (?:prompt|generation) run (\d{1,6})/\d+")
_MAX_LINE_BYTES: Final = 4096
UNDECIDED: Final = (
    "which work belongs to which repetition of llama-bench: the gaps between them do not decide it, so that figures "
    "cover loading and warm-up too"
)


@dataclass(slots=True)
class ProgressLines:
    """Takes what llama-bench prints on stderr, piece by piece, and notes when each repetition's first line came."""

    told_ns: dict[tuple[int, int], int] = field(default_factory=dict)  # (test, repetition), from 1 -> CLOCK_REALTIME
    _rest: bytes = b""

    def __call__(self, piece: bytes) -> None:
        now_ns = time.time_ns()
        *lines, rest = (self._rest + piece).split(b"\n")
        self._rest = rest[-_MAX_LINE_BYTES:]
        for line in lines:
            if found := _LINE.search(line):
                self.told_ns.setdefault((int(found[1]), int(found[2])), now_ns)


@dataclass(frozen=True, slots=True)
class _Window:
    """One repetition, in ns of the recording's clock."""

    row: BenchRow
    repetition: int
    start_ns: int
    end_ns: int


def with_repetitions(imported: Imported, rows: Sequence[BenchRow], lines: ProgressLines) -> Imported:
    """The recording of one process with a pass for each repetition; as it was, and saying so, where gaps do not decide.

    rows: what the process printed, a test each.
    """
    events, origin_ns = imported.tables["events"], imported.manifest_fields["extra"]["origin_ns"]
    told = {key: ns - origin_ns for key, ns in lines.told_ns.items()}
    windows = _windows(rows, told, _busy(events))
    if windows is None:
        imported.cannot_say.append(UNDECIDED)
        return imported
    of_events = _in_windows(events, windows)
    passes = pa.Table.from_pylist(list(_pass_rows(windows)), schema=PASSES)
    imported.tables |= {"events": of_events, "passes": with_bytes_h2d(passes, of_events)}
    return imported


def _windows(rows: Sequence[BenchRow], told_ns: Mapping[tuple[int, int], int], busy: Intervals) -> list[_Window] | None:
    """Every repetition of every test, in order; None where one of them is not certain."""
    asked = [(row, number, length) for row in rows for number, length in enumerate(row.samples_ns)]
    keys = [(test, number) for test, row in enumerate(rows, 1) for number in range(1, len(row.samples_ns) + 1)]
    told = [
        Told(told_ns[key], length, key[1] > 1 and not row.n_depth)
        for key, (row, _, length) in zip(keys, asked, strict=True)
        if key in told_ns
    ]
    starts = repetition_starts(told, busy) if len(told) == len(asked) else None
    if not starts:
        return None
    return [
        _Window(row, number, start, start + length) for (row, number, length), start in zip(asked, starts, strict=True)
    ]


def _busy(events: pa.Table) -> Intervals:
    work = events.filter(pa.array(has_role(events, DEVICE_WORK)))
    return union(work["t_start"].to_numpy(), work["t_end"].to_numpy())


def _in_windows(events: pa.Table, windows: Sequence[_Window]) -> pa.Table:
    """Each event in the pass and phase of the window in which it begins; in none between them."""
    starts, ends = (np.array([getattr(one, edge) for one in windows], np.int64) for edge in ("start_ns", "end_ns"))
    at = events["t_start"].to_numpy()
    place = np.searchsorted(starts, at, side="right") - 1
    is_inside = (place >= 0) & (at < ends[place])
    phase = np.array([_phase(one.row) for one in windows], object)[place]
    columns = {"pass_id": pa.array(place.astype(np.int32), mask=~is_inside), "phase": pa.array(phase, mask=~is_inside)}
    for name, values in columns.items():
        position = EVENTS.get_field_index(name)
        events = events.set_column(position, EVENTS.field(position), values.cast(EVENTS.field(position).type))
    return count_in_passes(events)


def _phase(row: BenchRow) -> str | None:
    """None where a test does both."""
    if row.n_prompt and row.n_gen:
        return None
    return "prefill" if row.n_prompt else "decode"


def _pass_rows(windows: Sequence[_Window]) -> Iterator[dict[str, Any]]:
    for number, one in enumerate(windows):
        yield {
            "pass_id": number,
            "n_ubatch": one.row.n_ubatch,
            "n_depth": one.row.n_depth,
            "n_prompt": one.row.n_prompt,
            "n_gen": one.row.n_gen,
            "repetition": one.repetition,
            "order": number,
            "boot": 0,
            "warmup": False,
            "t_start": one.start_ns,
            "t_end": one.end_ns,
        }
