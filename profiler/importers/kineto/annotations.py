"""The ranges that annotations open on host threads, and which range a host call lies in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from executor.tracing.nvtx_names import parse

_STEP: Final = re.compile(r"^ProfilerStep\s*#(\d{1,9})$")
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ProfilerStep:
    """torch.profiler's own name of an iteration."""

    number: int


@dataclass(frozen=True, slots=True)
class Ranges:
    """Annotations of one type, in order of their start: `names[i]` is parsed."""

    names: list[Any]
    start: Int64
    end: Int64
    thread: Int64

    def holding(self, thread: Int64, start: Int64, end: Int64) -> Int64:
        """For each interval the range that was opened last before it, if that holds the interval; else -1."""
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


def threads_of(rows: pa.Table) -> Int64:
    """A number from 1 for each (process, thread)."""
    process, lane = (
        np.unique(pc.fill_null(rows[name], -1).to_numpy(), return_inverse=True)[1] for name in ("process", "lane")
    )
    threads: Int64 = process * (int(lane.max()) + 1) + lane + 1
    return threads


def ranges_of(rows: pa.Table, threads: Int64, kind: type[Any]) -> Ranges:
    """The annotations whose name is of `kind`: PassName, UbatchName, StepName or ProfilerStep."""
    names = rows["name"].combine_chunks()
    parsed = [_parsed(text, kind) for text in names.dictionary.to_pylist()]
    known = np.array([name is not None for name in parsed], dtype=bool)
    codes = names.indices.to_numpy()
    is_annotation = pc.equal(rows["role"].combine_chunks().cast(pa.string()), "annotation").to_numpy(False)
    mine = np.flatnonzero(is_annotation & known[codes])
    chosen = mine[np.argsort(rows["t_start"].to_numpy()[mine], kind="stable")]
    start, end = (rows[name].to_numpy()[chosen] for name in ("t_start", "t_end"))
    return Ranges([parsed[code] for code in codes[chosen].tolist()], start, end, threads[chosen])


def _parsed(text: str, kind: type[Any]) -> Any:
    if kind is ProfilerStep:
        match = _STEP.match(text)
        return ProfilerStep(int(match[1])) if match else None
    name = parse(text)
    return name if isinstance(name, kind) else None
