"""The timeline of the HTML report: slices of the chosen passes, packed for the page's canvas."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profiler.arithmetic.intervals import Int64
from profiler.export.lanes import sub_lanes
from profiler.export.tracks import Track, lane_title

MAX_SLICES: Final = 24_000  # a track: about 1 MB of page
_FINEST, _COARSEST = 22, 12  # neighbours merge when closer than this power of two of the track's length
_MAX_NAME: Final = 120
_MERGED: Final = 0xFFFF


@dataclass(frozen=True, slots=True)
class _Slices:
    """Parallel arrays. `name` is _MERGED where `count` > 1 rows are drawn as one; layer and bytes -1: unknown."""

    level: Int64  # sub-lane
    start: Int64
    length: Int64
    name: Int64
    layer: Int64
    n_bytes: Int64
    count: Int64


def page_timeline(tracks: Sequence[Track]) -> dict[str, Any]:
    """What timeline.js draws: tracks with lanes, and their slices as base64 of little-endian columns.

    In a track of more than MAX_SLICES rows, neighbours that are close to each other are drawn as one.
    """
    first = min((track.line.extent[0] for track in tracks), default=0)
    last = max((track.line.extent[1] for track in tracks), default=0)
    return {
        "first_ns": first,
        "last_ns": max(last, first + 1),
        "tracks": [_track(track, first) for track in tracks if len(track.line)],
    }


def _track(track: Track, first_ns: int) -> dict[str, Any]:
    names, name_of_row = _names(track)
    parts = _lanes(track, name_of_row)
    several = len({lane.process for lane in track.line.lanes}) > 1
    lanes = [
        {"title": "" if level else lane_title(lane, several_processes=several), "category": lane.category}
        for lane, part in zip(track.line.lanes, parts, strict=True)
        for level in range(int(part.level.max()) + 1)
    ]
    return {
        "title": track.title,
        "lanes": lanes,
        "names": names,
        "n_rows": len(track.line),
        "n_slices": sum(len(part.start) for part in parts),
        "columns": {
            "start": _packed([part.start - first_ns for part in parts], "<f8"),
            "length": _packed([part.length for part in parts], "<f8"),
            "lane": _packed(_lane_numbers(parts), "<u2"),
            "name": _packed([part.name for part in parts], "<u2"),
            "layer": _packed([part.layer for part in parts], "<i2"),
            "bytes": _packed([part.n_bytes for part in parts], "<f4"),
            "count": _packed([part.count for part in parts], "<u4"),
        },
    }


def _lanes(track: Track, name_of_row: Int64) -> list[_Slices]:
    """The slices of each lane, merged just as far as MAX_SLICES asks."""
    parts = [_rows(track, number, name_of_row) for number in range(len(track.line.lanes))]
    first, last = track.line.extent
    for power in range(_FINEST, _COARSEST - 1, -1):
        if sum(len(part.start) for part in parts) <= MAX_SLICES:
            break
        parts = [_merged(part, max(1, (last - first) >> power)) for part in parts]
    return parts


def _lane_numbers(parts: Sequence[_Slices]) -> list[Int64]:
    """Lanes of the page: each lane's sub-lanes below it."""
    heights = [int(part.level.max()) + 1 for part in parts]
    tops = np.cumsum([0, *heights[:-1]])
    return [part.level + top for part, top in zip(parts, tops, strict=True)]


def _names(track: Track) -> tuple[list[str], Int64]:
    """The distinct names, tensors where they are known, and the number of each sorted row's."""
    table = track.line.table(["name", "tensor", "kind"])
    texts = [table[column].combine_chunks().cast(pa.string()) for column in ("tensor", "name", "kind")]
    texts[1] = pc.if_else(pc.equal(texts[1], ""), None, texts[1])
    labels = pc.coalesce(*texts).dictionary_encode()
    names = [(text or "")[:_MAX_NAME] for text in labels.dictionary.to_pylist()[:_MERGED]]
    return names, np.minimum(labels.indices.to_numpy(), _MERGED - 1).astype(np.int64)


def _rows(track: Track, number: int, name_of_row: Int64) -> _Slices:
    line = track.line
    rows = line.rows(number)
    start, end = line.start[rows], line.end[rows]
    told = line.table(["layer", "bytes"], rows)
    layer, n_bytes = (pc.fill_null(told[name], -1).to_numpy() for name in ("layer", "bytes"))
    once = np.ones(len(start), np.int64)
    return _Slices(sub_lanes(start, end), start, end - start, name_of_row[rows], layer, n_bytes, once)


def _merged(slices: _Slices, gap_ns: int) -> _Slices:
    """Slices, sorted by start, with those less than `gap_ns` apart put together; then none overlap."""
    reach = np.maximum.accumulate(slices.start + slices.length)
    opens = np.flatnonzero(np.concatenate([[True], slices.start[1:] >= reach[:-1] + gap_ns]))
    last = np.append(opens[1:], len(reach)) - 1
    count = np.add.reduceat(slices.count, opens)
    alone = count == 1
    start = slices.start[opens]
    return _Slices(
        level=np.zeros(len(opens), np.int64),
        start=start,
        length=reach[last] - start,
        name=np.where(alone, slices.name[opens], _MERGED),
        layer=np.where(alone, slices.layer[opens], -1),
        n_bytes=np.where(alone, slices.n_bytes[opens], -1),
        count=count,
    )


def _packed(columns: Sequence[Int64], kind: str) -> str:
    values = np.concatenate(columns)
    limits = np.iinfo(kind) if np.dtype(kind).kind in "iu" else None
    clipped = values if limits is None else np.clip(values, limits.min, limits.max)
    return base64.b64encode(clipped.astype(kind).tobytes()).decode()
