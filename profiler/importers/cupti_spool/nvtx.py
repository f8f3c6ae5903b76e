"""NVTX ranges of a spool: what begins and what ends are records of their own, and are paired here.

A range that was open when the recording began, paused or ended has only one of the two, and is left out: nothing says
how long it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from executor.arrays import Flags, Int64
from profiler.arithmetic.joins import distinct
from profiler.importers.absent import absent, known_where
from profiler.importers.cupti_spool.spool import Records, RecordType, SpoolFile
from profiler.importers.nsys.rows import matched
from profiler.importers.nsys.tables import DOMAIN_CREATE, PUSH_POP_RANGE, START_END_RANGE

MARK_EVENT: Final = 34  # ENUM_NSYS_EVENT_TYPE
_PAUSED: Final = 2  # the kind of a state: 1 is that it began
_FAR: Final = 1 << 40  # more than a spool has records

PAIRED: Final = (RecordType.RANGE_PUSH, RecordType.RANGE_POP)


def nvtx_columns(file: SpoolFile, global_pid: int, text_ids: Callable[[Int64], Int64]) -> dict[str, Int64]:
    """Rows of a table NVTX_EVENTS: ranges, then marks, then domains.

    global_pid: of the process, to which thread ids are added. text_ids: gives the ids of the table of strings.
    """
    stacked = _with_segment(file, *PAIRED)
    begins, ends = push_pop_pairs(*stacked)
    pushed, popped = stacked[0][begins], stacked[0][ends]
    started, finished = _start_end_pairs(file)
    marks, domains = file.of_type(RecordType.MARK), file.of_type(RecordType.DOMAIN)
    parts = (
        _rows(pushed, popped, PUSH_POP_RANGE, global_pid),
        _rows(started, finished, START_END_RANGE, global_pid),
        _rows(marks, None, MARK_EVENT, global_pid),
        _rows(domains, None, DOMAIN_CREATE, global_pid),
    )
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return columns | {"textId": text_ids(columns["textId"])}


def _rows(begin: Records, end: Records | None, event_type: int, global_pid: int) -> dict[str, Int64]:
    n_rows = len(begin)
    return {
        "start": begin["start"].astype(np.int64),
        "end": absent(n_rows) if end is None else end["start"].astype(np.int64),
        "eventType": np.full(n_rows, event_type),
        "globalTid": global_pid | begin["thread"].astype(np.int64),
        "endGlobalTid": absent(n_rows) if end is None else global_pid | end["thread"].astype(np.int64),
        "textId": begin["name"].astype(np.int64),
        "domainId": begin["extra"].astype(np.int64),
    }


def _with_segment(file: SpoolFile, *types: RecordType) -> tuple[Records, Int64]:
    """The records of these types, and for each how often recording had paused before it."""
    (records, number), (states, at) = file.numbered(*types), file.numbered(RecordType.STATE)
    return records, np.searchsorted(at[states["kind"] == _PAUSED], number)


def push_pop_pairs(records: Records, segment: Int64) -> tuple[Int64, Int64]:
    """The rows of pushes and of the pops that end them, one stack for each thread and domain of a segment.

    Where a stack is as deep as before, the last push at that depth is the one that a pop ends: in the order of stack,
    depth and time a push and its pop are neighbours.
    """
    if len(records) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    key = (records["thread"].astype(np.int64) << 32) | records["extra"].astype(np.int64)
    _, stack = distinct(key)
    _, stack = distinct(stack * (int(segment.max()) + 1) + segment)
    order = np.argsort(stack, kind="stable")
    stack, is_push = stack[order], (records["type"] == RecordType.RANGE_PUSH)[order]
    depth = _depths(stack, is_push)
    by_depth = np.lexsort((np.arange(len(depth)), depth, stack))
    of_stack, of_depth, pushes = stack[by_depth], depth[by_depth], is_push[by_depth]
    alike = (of_stack[1:] == of_stack[:-1]) & (of_depth[1:] == of_depth[:-1])
    first = np.flatnonzero(alike & pushes[:-1] & ~pushes[1:])
    rows = order[by_depth]
    return rows[first], rows[first + 1]


def _depths(stack: Int64, is_push: Flags) -> Int64:
    """How deep each push goes, from 1, and each pop comes back from; 0 for a pop of what was pushed before.

    stack: rising; rows of one stack in the order of time.
    """
    step = np.where(is_push, 1, -1)
    total = np.cumsum(step)
    begins = np.flatnonzero(np.concatenate([[True], stack[1:] != stack[:-1]]))
    total = total - np.repeat(total[begins] - step[begins], np.diff(np.append(begins, len(stack))))
    # The lowest point so far: a pop that goes below it ends nothing that was seen. Stacks lie far apart on one axis.
    base = -stack * _FAR
    lowest = np.minimum.accumulate(np.minimum(total, 0) + base) - base
    before = np.concatenate([[0], lowest[:-1]])
    before[begins] = 0
    depth: Int64 = np.where(is_push, total - lowest, total + 1 - before)
    return depth


def _start_end_pairs(file: SpoolFile) -> tuple[Records, Records]:
    """Ranges of nvtxRangeStart and nvtxRangeEnd, by their numbers, which no process uses twice."""
    begin, end = file.of_type(RecordType.RANGE_START), file.of_type(RecordType.RANGE_END)
    one = np.zeros(len(begin), np.int64)
    found = matched(one, begin["bytes"].astype(np.int64), np.zeros(len(end), np.int64), end["bytes"].astype(np.int64))
    has_end = known_where(found >= 0, found) >= 0
    paired: Records = begin[has_end]
    return paired, end[found[has_end]]
