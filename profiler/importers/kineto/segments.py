"""Cuts a trace into passes, ubatches and layers by its annotations; null wherever they do not say.

A row belongs to the range in which its host call was made: on the same thread for hprof's own ranges (the text
format of `executor.nvtx_names`), on any thread for torch.profiler's `ProfilerStep#n`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from executor.nvtx_names import PassName, StepName, UbatchName, parse
from profiler.importers.kineto.tables import Launches
from profiler.schema import PASSES, UBATCHES
from profiler.writer import conform

_STEP: Final = re.compile(r"^ProfilerStep\s*#(\d{1,9})$")
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Annotations of one type: `names[i]` is parsed, `thread` 0 where any thread counts."""

    names: list[Any]
    start: Int64
    end: Int64
    thread: Int64

    def holding(self, thread: Int64, start: Int64, end: Int64) -> Int64:
        """For each interval the range that was opened last before it, if it holds the interval; else -1."""
        n = len(self.names)
        if n == 0:
            return np.full(len(start), -1, np.int64)
        is_query = np.arange(n + len(start)) >= n
        threads = np.concatenate([self.thread, thread])
        order = np.lexsort((is_query, np.concatenate([self.start, start]), threads))
        latest = np.maximum.accumulate(np.where(order < n, np.arange(len(order)), -1))
        found = np.empty(len(order), np.int64)
        found[order] = np.where(latest >= 0, order[latest], -1)
        last = found[n:]
        inside = (last >= 0) & (self.thread[last] == thread) & (end <= self.end[last])
        return np.where(inside, last, -1)


@dataclass(frozen=True, slots=True)
class Segments:
    """What the annotations say: columns for `events_table`, and the tables `passes` and `ubatches`."""

    context: dict[str, pa.Array]
    passes: pa.Table
    ubatches: pa.Table


def segment(rows: pa.Table, launches: Launches, arm: str) -> Segments:
    """Read the annotations among `rows`; `arm` names the passes that come from ProfilerStep ranges."""
    if "annotation" not in rows["role"].unique().to_pylist():
        return Segments({}, PASSES.empty_table(), UBATCHES.empty_table())
    threads = _threads(rows)
    start, end = (rows[name].to_numpy()[launches.row] for name in ("t_start", "t_end"))
    has_call = launches.found | launches.is_host
    thread = np.where(has_call, threads[launches.row], -1)

    def place(ranges: _Ranges) -> Int64:
        own = thread if ranges.thread.any() else np.minimum(thread, 0)
        return np.where(has_call, ranges.holding(own, start, end), -1)

    passes, is_step = _ranges(rows, threads, PassName), False
    if not passes.names:
        passes, is_step = _ranges(rows, np.zeros_like(threads), int), True
    ubatches, steps = _ranges(rows, threads, UbatchName), _ranges(rows, threads, StepName)
    in_pass, in_ubatch, in_step = place(passes), place(ubatches), place(steps)
    pass_ids = _pass_ids(passes.names, is_step)
    context = {
        "pass_id": _taken(pass_ids, in_pass, pa.int32()),
        "phase": _taken([name.phase for name in ubatches.names], in_ubatch, pa.string()),
        "ubatch": _taken([name.ubatch for name in ubatches.names], in_ubatch, pa.int32()),
        "n_tokens": _taken([name.n_tokens for name in ubatches.names], in_ubatch, pa.int32()),
        "layer": _taken([name.layer for name in steps.names], in_step, pa.int32()),
        "tensor": _taken([name.tensor for name in steps.names], in_step, pa.string()),
    }
    own = passes.holding(np.minimum(ubatches.thread, 0 if is_step else 2**62), ubatches.start, ubatches.end)
    return Segments(
        context,
        _passes_table(passes, pass_ids, arm, in_pass, rows),
        _ubatches_table(ubatches, _taken(pass_ids, own, pa.int32())),
    )


def _threads(rows: pa.Table) -> Int64:
    """A number from 1 for each (process, thread)."""
    process, lane = (
        np.unique(pc.fill_null(rows[name], -1).to_numpy(), return_inverse=True)[1] for name in ("process", "lane")
    )
    threads: Int64 = process * (int(lane.max()) + 1) + lane + 1
    return threads


def _ranges(rows: pa.Table, threads: Int64, kind: type[Any]) -> _Ranges:
    names = rows["name"].combine_chunks()
    parsed = [_parsed(text, kind) for text in names.dictionary.to_pylist()]
    known = np.array([name is not None for name in parsed], dtype=bool)
    codes = names.indices.to_numpy()
    annotations = pc.equal(rows["role"].combine_chunks().cast(pa.string()), "annotation").to_numpy(False)
    mine = np.flatnonzero(annotations & known[codes]) if len(known) else np.empty(0, np.int64)
    start, end = (rows[name].to_numpy()[mine] for name in ("t_start", "t_end"))
    order = np.argsort(start, kind="stable")
    chosen = mine[order]
    return _Ranges([parsed[code] for code in codes[chosen].tolist()], start[order], end[order], threads[chosen])


def _parsed(text: str, kind: type[Any]) -> Any:
    if kind is int:
        match = _STEP.match(text)
        return int(match[1]) if match else None
    name = parse(text)
    return name if isinstance(name, kind) else None


def _pass_ids(names: Sequence[Any], is_step: bool) -> list[int]:
    """The ids that the ranges name, or their order where those are not unique."""
    named = [] if is_step else [name.pass_id for name in names]
    return named if names and len(set(named)) == len(names) else list(range(len(names)))


def _taken(values: Sequence[Any], index: Int64, kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind).take(pa.array(index, mask=index < 0))


def _passes_table(passes: _Ranges, ids: list[int], arm: str, in_pass: Int64, rows: pa.Table) -> pa.Table:
    ends = passes.end.copy()
    inside = in_pass >= 0
    np.maximum.at(ends, in_pass[inside], rows["t_end"].to_numpy()[inside])

    def each(of_name: Callable[[Any], Any]) -> list[Any]:
        return [of_name(name) if isinstance(name, PassName) else None for name in passes.names]

    n = len(ids)
    columns: dict[str, Any] = {
        "pass_id": ids,
        "arm": [name.arm if isinstance(name, PassName) else arm for name in passes.names],
        "n_ubatch": each(lambda name: name.n_ubatch),
        "n_depth": each(lambda name: name.n_depth),
        "n_prompt": each(lambda name: name.n_prompt),
        "n_gen": each(lambda name: name.n_gen),
        "repetition": [name.repetition if isinstance(name, PassName) else i for i, name in enumerate(passes.names)],
        "order": list(range(n)),
        "boot": [0] * n,
        "warmup": [isinstance(name, PassName) and name.warmup for name in passes.names],
        "t_start": passes.start,
        "t_end": ends,
    }
    return conform("passes", columns)


def _ubatches_table(ubatches: _Ranges, pass_ids: pa.Array) -> pa.Table:
    columns: dict[str, Any] = {
        "pass_id": pass_ids,
        "phase": [name.phase for name in ubatches.names],
        "ubatch": [name.ubatch for name in ubatches.names],
        "n_tokens": [name.n_tokens for name in ubatches.names],
        "t_start": ubatches.start,
        "t_end": ubatches.end,
    }
    return conform("ubatches", columns)
