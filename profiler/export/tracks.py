"""Which passes an export shows (those named, else one typical pass of each arm), laid out as tracks: a process for
each pass, a thread for each lane and sub-lane.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

from executor.arrays import Int64
from executor.errors import HprofError
from profiler.capture import Capture
from profiler.metrics.lane_titles import lane_title
from profiler.metrics.passes import CELL_KEYS, measured_passes
from profiler.metrics.timeline import Timeline, load_timeline

ALL: Final = "all"
_RANGE: Final = re.compile(r"^(\d{1,9})(?:-(\d{1,9}))?$", re.ASCII)


def chosen_passes(capture: Capture, text: str | None) -> list[int] | None:
    """Pass ids for `--passes TEXT` ("3", "0,4-6", "all"), or the typical ones; None: the whole capture at once.

    Raises HprofError for numbers that the capture does not have.
    """
    passes = capture.passes
    known = passes["pass_id"].tolist()
    if text is not None and text.strip() != ALL:
        return _named(text, known, capture.path)
    if not known:
        return None
    if text is not None:
        return known
    # other tools record one clock for everything; only where files were put together do arms stand apart
    has_arms = passes["arm"].nunique() > 1
    return typical_passes(passes) if has_arms or capture.manifest.source == "hprof" else None


def typical_passes(passes: pd.DataFrame) -> list[int]:
    """One pass an arm, all of the cell that most arms ran: the one of median length (the earlier of two)."""
    measured = measured_passes(passes)
    if measured.empty:
        measured = passes
    cells = [rows for _, rows in measured.groupby(CELL_KEYS, dropna=False, sort=False)]
    cell = max(cells, key=lambda rows: int(rows["arm"].nunique()))
    return [_of_median_length(rows) for _, rows in cell.groupby("arm", sort=False)]


def _of_median_length(rows: pd.DataFrame) -> int:
    length = (rows["t_end"] - rows["t_start"]).to_numpy(dtype=float, na_value=np.inf)
    order = np.argsort(length, kind="stable")
    return int(rows["pass_id"].to_numpy()[order[(len(order) - 1) // 2]])


def _named(text: str, known: Sequence[int], path: str) -> list[int]:
    wanted: list[int] = []
    for part in text.split(","):
        match = _RANGE.match(part.strip())
        if match is None:
            raise HprofError(f"--passes {text!r} is no list of pass numbers; write for example 0,4-6, or all.")
        first, last = int(match[1]), int(match[2] or match[1])
        found = [number for number in known if first <= number <= last]
        if not found:
            raise HprofError(f"{path} has no pass {part.strip()}; it has {_spelled(known)}.")
        wanted += found
    return list(dict.fromkeys(wanted))


def _spelled(known: Sequence[int]) -> str:
    return f"{len(known)} passes, {min(known)} to {max(known)}" if known else "no passes"


def sub_lanes(start: Int64, end: Int64) -> Int64:
    """For each slice of one lane, sorted by start, the number of its sub-lane: the lowest that is free then.

    Only stretches in which slices overlap are walked one by one; elsewhere every slice is in sub-lane 0.
    """
    levels = np.zeros(len(start), np.int64)
    if len(start) < 2:
        return levels
    latest = np.maximum.accumulate(end)
    opens = np.flatnonzero(np.concatenate([[True], start[1:] >= latest[:-1]]))
    sizes = np.diff(np.append(opens, len(start)))
    for first, size in zip(opens[sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True):
        levels[first : first + size] = _first_fit(
            start[first : first + size].tolist(), end[first : first + size].tolist()
        )
    return levels


def _first_fit(start: list[int], end: list[int]) -> list[int]:
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # (end, level)
    n_levels = 0
    levels = []
    for begins, ends in zip(start, end, strict=True):
        while busy and busy[0][0] <= begins:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            level = heapq.heappop(free)
        else:
            level, n_levels = n_levels, n_levels + 1
        heapq.heappush(busy, (ends, level))
        levels.append(level)
    return levels


Chosen = tuple[Capture, list[int] | None]  # pass ids; null: the whole capture as one track

UBATCH_THREAD: Final = 1  # above the lanes; 0 means the idle task to viewers


@dataclass(frozen=True, slots=True)
class Track:
    """One process of the export. `passed` is the row of `passes`, empty for a whole capture."""

    number: int  # from 1
    title: str
    passed: dict[str, Any]
    ubatches: pa.Table
    line: Timeline  # times in ns after the pass's start
    thread: Int64  # of each sorted row of the line
    threads: dict[int, str]  # thread -> its title, in the order to show


def tracks_of(chosen: Sequence[Chosen]) -> list[Track]:
    """The tracks of every chosen pass, captures named where there are several."""
    tracks: list[Track] = []
    for capture, pass_ids in chosen:
        prefix = f"{capture.name} · " if len(chosen) > 1 else ""
        for pass_id in [None] if pass_ids is None else pass_ids:
            tracks.append(_track(capture, pass_id, len(tracks) + 1, prefix))
    return tracks


def lead_ns(tracks: Sequence[Track]) -> int:
    """How far the earliest row lies before its pass's start: viewers want no negative times."""
    return max([0, *(-track.line.extent[0] for track in tracks)])


def _track(capture: Capture, pass_id: int | None, number: int, prefix: str) -> Track:
    passed: dict[str, Any] = {}
    origin_ns = None
    pass_ids = None if pass_id is None else [pass_id]
    if pass_id is not None:
        passed = capture.table("passes", pass_ids=pass_ids).to_pylist()[0]
        origin_ns = passed["t_start"]
    line = load_timeline(capture, pass_ids, origin_ns=origin_ns, by_stream=True)
    thread, threads = _threads(line)
    title = prefix + (pass_title(passed) if passed else capture.name)
    ubatches = capture.table("ubatches", pass_ids=pass_ids if pass_id is not None else [])
    return Track(number, title, passed, ubatches, line, thread, threads)


def pass_title(passed: dict[str, Any]) -> str:
    """`on · pass 3 (ubatch 512, depth 0, prompt 512, gen 16, repetition 2)`; what is null is left out."""
    named = (("n_ubatch", "ubatch"), ("n_depth", "depth"), ("n_prompt", "prompt"), ("n_gen", "gen"))
    facts = [
        f"{word} {passed[name]}" for name, word in (*named, ("repetition", "repetition")) if passed[name] is not None
    ]
    return f"{passed['arm']} · pass {passed['pass_id']} ({', '.join(facts)})"


def _threads(line: Timeline) -> tuple[Int64, dict[int, str]]:
    thread = np.zeros(len(line), np.int64)
    titles: dict[int, str] = {}
    for number, lane in enumerate(line.lanes):
        rows = line.rows(number)
        levels = sub_lanes(line.start[rows], line.end[rows])
        first = UBATCH_THREAD + 1 + len(titles)
        thread[rows] = first + levels
        for level in range(int(levels.max()) + 1 if len(levels) else 1):
            titles[first + level] = lane_title(lane, line.lanes) + (f" ({level + 1})" if level else "")
    return thread, titles
