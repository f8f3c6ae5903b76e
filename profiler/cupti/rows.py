"""Kernels that CUPTI saw, as rows of `events` on the clock of their pass, in the place of the step they belong to.

Copies between host and device are left out: hprof's own rows are theirs, and say more. So are kernels outside the
pass. What is left lies inside steps that hprof's rows count already; `detail` is `kernel`, which no metric counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from executor.records import EventRecord, PassResult
from profiler.arithmetic.intervals import Int64
from profiler.cupti.clock import Spans, match_clocks
from profiler.importers.base import Imported
from profiler.schema import KERNEL, KERNEL_STREAM
from profiler.storage.writer import conform

LEAST_SHARE: Final = 0.5  # of the work must lie inside its marks, else the clocks are not known
_INSIDE: Final = ("compute", "d2d")  # what runs inside a step: kernels, memsets, copies within the device; not sized
_KINDS: Final = (("h2d",), ("d2h",), _INSIDE)


@dataclass(frozen=True, slots=True)
class Kernels:
    """Rows of `events` of one pass, ns after the pass's zero; `n_unmatched` rows have no known clock."""

    rows: pa.Table
    n_unmatched: int = 0


def kernel_rows(trace: Imported, result: PassResult, zero_unix_ns: Mapping[int, int]) -> Kernels:
    """The kernels of one pass from a trace of it.

    zero_unix_ns: the system's clock (ns since 1970) at the zero of each device's times in `result`.
    """
    base_ns = trace.manifest_fields.get("extra", {}).get("kineto", {}).get("baseTimeNanoseconds") or 0
    found, n_unmatched = [], 0
    for device, zero_ns in zero_unix_ns.items():
        events = trace.tables["events"].filter(pc.equal(trace.tables["events"]["device"], device))
        records = [record for record in result.events if record.device == device]
        match = match_clocks([(_marked(records, kinds), _seen(events, kinds)) for kinds in _KINDS], base_ns - zero_ns)
        inside = _of_kinds(events, _INSIDE)
        if match is None or match.share < LEAST_SHARE:
            n_unmatched += inside.num_rows
            continue
        found.append(_rows(inside, match.offset_ns, device, records, (result.t_start, result.t_end)))
    return Kernels(pa.concat_tables([conform("events", {}), *found]), n_unmatched)


def _rows(
    kernels: pa.Table, offset_ns: int, device: int, records: Sequence[EventRecord], window: tuple[int, int]
) -> pa.Table:
    start, end = (kernels[name].to_numpy() + offset_ns for name in ("t_start", "t_end"))
    in_pass = (end > window[0]) & (start < window[1])
    kernels, start, end = kernels.filter(pa.array(in_pass)), start[in_pass], end[in_pass]
    n = len(start)
    columns: dict[str, Any] = {
        "device": pa.repeat(device, n),
        "kind": _label("compute", n),
        "detail": _label(KERNEL, n),
        "stream": _label(KERNEL_STREAM, n),
        "name": kernels["name"],
        "t_start": start,
        "t_end": end,
        "bytes": kernels["bytes"],
        **_places((start + end) // 2, records),
    }
    return conform("events", columns)


def _places(middle: Int64, records: Sequence[EventRecord]) -> dict[str, pa.Array]:
    """Phase, ubatch, layer and tokens of the step that each kernel runs in; null between steps."""
    steps = sorted((r for r in records if r.kind in _INSIDE), key=lambda record: record.t_start)
    starts, ends = (np.array([getattr(step, name) for step in steps], np.int64) for name in ("t_start", "t_end"))
    step = np.searchsorted(starts, middle, side="right") - 1
    inside = step >= 0
    inside[inside] = middle[inside] < ends[step[inside]]
    rows = pa.array(step, mask=~inside)
    kinds = {"phase": pa.string(), "ubatch": pa.int32(), "layer": pa.int32(), "n_tokens": pa.int32()}
    return {name: pa.array([getattr(s, name) for s in steps], kind).take(rows) for name, kind in kinds.items()}


def _marked(records: Sequence[EventRecord], kinds: Collection[str]) -> Spans:
    mine = [record for record in records if record.kind in kinds]
    start, end = (np.array([getattr(record, name) for record in mine], np.int64) for name in ("t_start", "t_end"))
    return Spans(start, end, np.array([0 if kinds is _INSIDE else record.bytes or 0 for record in mine], np.int64))


def _seen(events: pa.Table, kinds: Collection[str]) -> Spans:
    rows = _of_kinds(events, kinds)
    start, end = (rows[name].to_numpy() for name in ("t_start", "t_end"))
    n_bytes = np.zeros(len(start), np.int64) if kinds is _INSIDE else pc.fill_null(rows["bytes"], 0).to_numpy()
    return Spans(start, end, n_bytes)


def _of_kinds(events: pa.Table, kinds: Collection[str]) -> pa.Table:
    return events.filter(pc.is_in(events["kind"].cast(pa.string()), pa.array(list(kinds))))


def _label(text: str, n: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(n, np.int32), [text])
