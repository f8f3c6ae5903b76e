"""A report as one HTML file: tables, verdicts, findings, and a timeline packed for the page's canvas. The page loads
nothing and sends nothing: its policy allows no request and only its own script, by hash, and every text of the
capture is escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from executor.arrays import Int64
from profiler.export.tracks import Track, sub_lanes
from profiler.metrics.lane_titles import lane_title
from profiler.plain_text import printable
from profiler.report.blocks import Block
from profiler.report.html import block_html
from profiler.report.report import Report, blocks

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
    lanes = [
        {"title": "" if level else lane_title(lane, track.line.lanes), "category": lane.category}
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
    names = [printable((text or "")[:_MAX_NAME]) for text in labels.dictionary.to_pylist()[:_MERGED]]
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


def render_html(report: Report, tracks: Sequence[Track]) -> str:
    """The page; `tracks` are the passes of its timeline."""
    style, script = (
        files("profiler.export").joinpath("page", name).read_text("utf-8") for name in ("page.css", "page.js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'"
    title = escape(f"hprof: {report.capture.rstrip('/').rsplit('/', 1)[-1]}")
    body = "\n".join(_sections(report, page_timeline(tracks)))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{title}</title>\n<style>\n{style}</style>\n'
        f"</head>\n<body>\n<main>\n{body}\n</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _sections(report: Report, timeline: dict[str, Any]) -> Iterator[str]:
    """The answer first: the summary and the findings before the tables they are read from."""
    found = blocks(report)
    first = ("heading", "facts", "warnings", "summary", "findings")
    last = ("devices", "ordering", "cannot_say", "dropped", "notes")
    yield from _drawn(found, first)
    yield from _drawn(found, [name for name in found if name not in (*first, *last)])
    if timeline["tracks"]:
        yield _timeline(timeline)
    yield from _drawn(found, last)


def _drawn(found: dict[str, list[Block]], names: Iterable[str]) -> Iterator[str]:
    return (line for name in names for block in found[name] for line in block_html(block))


def _timeline(timeline: dict[str, Any]) -> str:
    merged = [track for track in timeline["tracks"] if track["n_slices"] < track["n_rows"]]
    note = "".join(
        f'<p class="note">{escape(track["title"])}: {track["n_rows"]:,} events are drawn as {track["n_slices"]:,} '
        "slices; neighbours too close to tell apart are one slice.</p>"
        for track in merged
    )
    data = orjson.dumps(timeline).decode().replace("<", "\\u003c")
    return (
        "<h2>Timeline</h2>\n"
        '<p class="note">Each pass starts at zero. Scroll or W and S zoom, drag or A and D move, double-click '
        f'shows all.</p>\n{note}<div id="timeline" tabindex="0"><canvas role="img" aria-label="Timeline: one lane '
        'for each kind of work of each pass; the tables on this page hold its figures."></canvas>'
        '<div id="tip" hidden></div></div>\n'
        f'<script type="application/json" id="timeline-data">{data}</script>'
    )
