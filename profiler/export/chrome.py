"""Chrome's trace format, which ui.perfetto.dev, chrome://tracing and speedscope read.

Each pass is a process of its own and all start at zero, so that A and B lie over each other; a lane is a thread, and
slices that overlap go to sub-lanes. Arrows lead from a copy to the work that waited for it; counters show the rate of
the copies and the device memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profiler.arithmetic.intervals import Int64
from profiler.export.chrome_extras import arrow_lines, memory_lines, rate_lines, ubatch_lines
from profiler.export.json_text import decimals, escaped, fields, join, microseconds, numbers, quoted
from profiler.export.tracks import Chosen, Track, lead_ns, tracks_of

_ROWS_AT_ONCE: Final = 100_000
_NUMBERS: Final = ("ubatch", "layer", "bytes", "whole_bytes", "n_tokens", "n_experts", "slot", "correlation_id")
_LABELS: Final = ("kind", "phase", "tensor", "stream", "source_memory", "detail")


class Sink(Protocol):
    """What the JSON goes to: a file, gzip or not."""

    def write(self, data: bytes, /) -> int: ...


def write_chrome(chosen: Sequence[Chosen], out: Sink) -> Counter[str]:
    """Write the chosen passes as one JSON file; gives back how many slices, arrows and so on it holds."""
    tracks = tracks_of(chosen)
    lead = lead_ns(tracks)
    names = ",".join(escaped(capture.name) for capture, _ in chosen)
    out.write(f'{{"displayTimeUnit":"ns","otherData":{{"tool":"hprof","captures":[{names}]}},'.encode())
    out.write(b'"traceEvents":[')
    counts: Counter[str] = Counter()
    for track in tracks:
        for what, lines in _all_lines(track, lead):
            if lines:
                out.write(b",\n" if counts else b"\n")
                out.write(",\n".join(lines).encode())
                counts[what] += len(lines)
    out.write(b"\n]}\n")
    return counts


def _all_lines(track: Track, lead: int) -> Iterator[tuple[str, list[str]]]:
    yield "names", _name_lines(track)
    yield "ubatches", ubatch_lines(track, lead)
    for first in range(0, len(track.line), _ROWS_AT_ONCE):
        yield "slices", _slice_lines(track, slice(first, first + _ROWS_AT_ONCE), lead)
    yield "arrows", arrow_lines(track, lead)
    yield "rates", rate_lines(track, lead)
    yield "memory", memory_lines(track, lead)


def _name_lines(track: Track) -> list[str]:
    named: list[tuple[str, int, str]] = [("process_name", 0, track.title)]
    named += [("thread_name", thread, title) for thread, title in track.threads.items()]
    lines = [
        f'{{"ph":"M","pid":{track.number},"tid":{thread},"name":"{key}","args":{{"name":{escaped(title)}}}}}'
        for key, thread, title in named
    ]
    lines += [_order_line(track.number, 0, "process_sort_index")]
    return lines + [_order_line(track.number, thread, "thread_sort_index") for thread in track.threads]


def _order_line(process: int, thread: int, key: str) -> str:
    place = thread or process
    return f'{{"ph":"M","pid":{process},"tid":{thread},"name":"{key}","args":{{"sort_index":{place}}}}}'


def _slice_lines(track: Track, rows: slice, lead: int) -> list[str]:
    line = track.line
    start, end = line.start[rows], line.end[rows]
    columns = line.table(rows=rows)
    lines = join(
        f'{{"ph":"X","pid":{track.number},"tid":',
        numbers(track.thread[rows]),
        ',"ts":',
        microseconds(start + lead),
        ',"dur":',
        microseconds(end - start),
        ',"cat":',
        quoted(columns["kind"].combine_chunks()),
        ',"name":',
        pc.coalesce(_name(columns), quoted(columns["kind"].combine_chunks())),
        ',"args":{',
        _arguments(columns, end - start),
        "}}",
    )
    texts: list[str] = lines.to_pylist()
    return texts


def _name(columns: pa.Table) -> pa.Array:
    name = columns["name"].combine_chunks()
    return pc.if_else(pc.equal(pc.fill_null(name.cast(pa.string()), ""), ""), None, quoted(name))


def _arguments(columns: pa.Table, length: Int64) -> pa.Array:
    n_bytes = columns["bytes"].cast(pa.float64(), safe=False).to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        gb_s = n_bytes / length
    named: list[tuple[str, Any]] = [(name, quoted(columns[name].combine_chunks())) for name in _LABELS]
    named += [(name, columns[name].combine_chunks().cast(pa.string())) for name in _NUMBERS]
    return fields([*named, ("gb_s", decimals(gb_s, 3))])
