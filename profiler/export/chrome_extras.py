"""What a Chrome trace shows besides slices of work: ubatches, arrows, the copies' rate and the device memory."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow.compute as pc

from profiler.arithmetic.intervals import Int64
from profiler.export.json_text import decimals, escaped, join, microseconds, numbers
from profiler.export.tracks import UBATCH_THREAD, Track
from profiler.metrics.anchors import ubatch_spans
from profiler.metrics.waits import waited_for

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
