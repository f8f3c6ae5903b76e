"""Chrome's trace format, which ui.perfetto.dev, chrome://tracing and speedscope read.

Each pass is a process of its own and all start at zero, so that A and B lie over each other; a lane is a thread,
and overlapping slices go to sub-lanes. Arrows lead from a copy to the work that waited for it; counters show the
copies' rate and the device memory. JSON is built a column at a time, a hundred thousand rows to an arrow call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from executor.arrays import Int64
from profiler.export.tracks import UBATCH_THREAD, Chosen, Track, lead_ns, tracks_of
from profiler.metrics.timeline_detail import ubatch_spans, waited_for
from profiler.plain_text import readable


def join(*pieces: str | pa.Array) -> pa.Array:
    """The pieces of each row put together; constants are repeated."""
    return pc.binary_join_element_wise(*pieces, "")


def quoted(labels: pa.Array) -> pa.Array:
    """A label column as JSON strings, null as null. Each distinct text is escaped once."""
    encoded = labels if pa.types.is_dictionary(labels.type) else labels.dictionary_encode()
    texts = [escaped(text) for text in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def escaped(text: str | None) -> str:
    """A JSON string that is also safe inside a <script>: no `<` stays."""
    return orjson.dumps(readable(text or "")).decode().replace("<", "\\u003c")


def microseconds(ns: Int64) -> pa.Array:
    """Nanoseconds >= 0 as microseconds with three decimals, exactly."""
    whole, rest = np.divmod(ns, 1000)
    return join(numbers(whole), ".", pc.utf8_lpad(numbers(rest), 3, "0"))


def numbers(values: NDArray[np.integer]) -> pa.Array:
    """Integers as text."""
    return pa.array(values).cast(pa.string())


def decimals(values: NDArray[np.floating], digits: int) -> pa.Array:
    """Floats as text with at most `digits` decimals, null where they are not finite."""
    rounded = np.round(values, digits)
    return pa.array(rounded, mask=~np.isfinite(rounded)).cast(pa.string())


def fields(named: Sequence[tuple[str, pa.Array]]) -> pa.Array:
    """`"name":value,...` of the values that are not null, without braces; empty where all are.

    Arrow's own way to skip nulls leaves out each row that has nothing else.
    """
    parts = [pc.fill_null(join(f',"{name}":', values), "") for name, values in named]
    return pc.utf8_slice_codeunits(join(*parts), 1)


_ARROWS_A_TRACK: Final = 10**9
_MEMORY: Final = {"vram_resident": "resident", "vram_slots": "slots", "vram_bank": "bank"}


def ubatch_lines(track: Track, lead: int) -> list[str]:
    """A slice for each ubatch, on a thread above all others."""
    lines = []
    for span in ubatch_spans(track.line, track.ubatches):
        name = f"{span.phase or 'ubatch'} {span.number}" + (f" · {span.n_tokens} tokens" if span.n_tokens else "")
        times = microseconds(np.array([span.start_ns + lead, max(0, span.end_ns - span.start_ns)])).to_pylist()
        args = f'{{"policy":{escaped(span.policy)}}}' if span.policy else "{}"
        lines.append(
            f'{{"ph":"X","pid":{track.number},"tid":{UBATCH_THREAD},"ts":{times[0]},"dur":{times[1]},'
            f'"cat":"ubatch","name":{escaped(name)},"args":{args}}}'
        )
    if lines:
        lines.append(
            f'{{"ph":"M","pid":{track.number},"tid":{UBATCH_THREAD},"name":"thread_name","args":{{"name":"ubatches"}}}}'
        )
    return lines


def arrow_lines(track: Track, lead: int) -> list[str]:
    """Two lines an arrow: from a copy to each row whose `waits_for` names it."""
    line = track.line
    columns = line.table(["kind", "correlation_id", "waits_for"])
    copy, consumer = waited_for(columns)
    # an arrow holds to the slice that covers its time, so it leaves just inside the copy's end
    leaves = np.maximum(line.start[copy], line.end[copy] - 1) + lead
    number = track.number * _ARROWS_A_TRACK + np.arange(len(copy))
    ends = (
        ("s", track.thread[copy], leaves, ""),
        ("f", track.thread[consumer], line.start[consumer] + lead, ',"bp":"e"'),
    )
    lines: list[str] = []
    for phase, thread, times, extra in ends:
        lines += join(
            f'{{"ph":"{phase}","cat":"waits","name":"waits for","pid":{track.number}{extra},"tid":',
            numbers(thread),
            ',"id":',
            numbers(number),
            ',"ts":',
            microseconds(times),
            "}",
        ).to_pylist()
    return lines


def rate_lines(track: Track, lead: int) -> list[str]:
    """A counter a device: the rate of its explicit copies from the host, GB/s, at every moment it changes."""
    line = track.line
    lines: list[str] = []
    devices: dict[tuple[int | None, int | None], list[int]] = {}
    for number, lane in enumerate(line.lanes):
        if lane.category == "h2d":
            devices.setdefault((lane.process, lane.device), []).append(number)
    for (process, device), lanes in devices.items():
        rows = np.concatenate([np.arange(line.first[lane], line.first[lane + 1]) for lane in lanes])
        times, rates = copy_rates(track, rows)
        name = " ".join(["H2D", *(["GPU", str(device)] if device is not None else [])])
        if len({key[0] for key in devices}) > 1:
            name += f" process {process}"
        lines += join(
            f'{{"ph":"C","pid":{track.number},"name":{escaped(name)},"ts":',
            microseconds(times + lead),
            ',"args":{"GB/s":',
            decimals(rates, 3),
            "}}",
        ).to_pylist()
    return lines


def copy_rates(track: Track, rows: Int64) -> tuple[Int64, np.ndarray]:
    """When the summed rate of these rows (bytes / length of each) changes, and to what; rows without sizes count 0."""
    line = track.line
    sizes = pc.fill_null(line.table(["bytes"], rows)["bytes"], 0).to_numpy()
    start, end = line.start[rows], line.end[rows]
    known = (sizes > 0) & (end > start)
    start, end, rate = start[known], end[known], sizes[known] / (end[known] - start[known])
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    running = np.cumsum(np.concatenate([rate, -rate])[order])
    n_running = np.cumsum(np.repeat([1, -1], len(start))[order])
    last = np.append(times[order][1:] != times[order][:-1], True)[: len(times)]
    return times[order][last], np.where(n_running[last] == 0, 0.0, running[last])


def memory_lines(track: Track, lead: int) -> list[str]:
    """Device memory from the pass's start to its end, as stacked parts; none where the source does not say."""
    peak = track.passed.get("vram_peak")
    parts = {label: track.passed.get(name) for name, label in _MEMORY.items()}
    known = {label: value for label, value in parts.items() if value is not None}
    if peak is None and not known:
        return []
    if peak is not None:
        known["other"] = max(0, peak - sum(known.values()))
    values = ",".join(f'"{label}":{value}' for label, value in known.items())
    end = max(track.line.extent[1], (track.passed["t_end"] or 0) - track.line.origin_ns)
    times = microseconds(np.array([lead, lead + max(0, end)])).to_pylist()
    return [
        f'{{"ph":"C","pid":{track.number},"name":"VRAM bytes (peak)","ts":{time},"args":{{{values}}}}}'
        for time in times
    ]


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
    kind = pc.fill_null(quoted(columns["kind"].combine_chunks()), '"unknown"')
    lines = join(
        f'{{"ph":"X","pid":{track.number},"tid":',
        numbers(track.thread[rows]),
        ',"ts":',
        microseconds(start + lead),
        ',"dur":',
        microseconds(end - start),
        ',"cat":',
        kind,
        ',"name":',
        pc.coalesce(_name(columns), kind),
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
