"""Lays chosen passes out as tracks: a process for each pass, a thread for each lane and sub-lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from profiler.arithmetic.intervals import Int64
from profiler.capture import Capture
from profiler.export.lanes import sub_lanes
from profiler.metrics.lanes import Lane
from profiler.metrics.timeline import Timeline, load_timeline

Chosen = tuple[Capture, list[int] | None]  # pass ids; null: the whole capture as one track

UBATCH_THREAD: Final = 1  # above the lanes; 0 means the idle task to viewers
_CATEGORY_TITLES: Final = {
    "h2d": "copies to the device",
    "d2h": "copies to the host",
    "d2d": "copies on the device",
    "compute": "compute",
    "wait": "waits",
    "cpu_compute": "host compute",
    "api": "host calls",
}


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
    several = len({lane.process for lane in line.lanes}) > 1
    for number, lane in enumerate(line.lanes):
        rows = line.rows(number)
        levels = sub_lanes(line.start[rows], line.end[rows])
        first = UBATCH_THREAD + 1 + len(titles)
        thread[rows] = first + levels
        for level in range(int(levels.max()) + 1 if len(levels) else 1):
            titles[first + level] = lane_title(lane, several_processes=several) + (f" ({level + 1})" if level else "")
    return thread, titles


def lane_title(lane: Lane, *, several_processes: bool) -> str:
    """`GPU 0 · copies to the device · stream 14`."""
    parts = [f"process {lane.process}"] if several_processes and lane.process is not None else []
    if lane.device is not None:
        parts.append(f"GPU {lane.device}")
    parts.append(_CATEGORY_TITLES[lane.category])
    if lane.stream is not None and lane.stream != lane.category:
        parts.append(lane.stream if lane.stream.startswith("thread ") else f"stream {lane.stream}")
    return " · ".join(parts)
