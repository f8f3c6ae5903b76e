"""Happens-before by vector clocks: a component a chain, joined where a stream or the thread waits for an event.

An operation begins after all that its stream did before, after what the stream waited for, and after what the issuing
thread knew when it issued it. A pass begins when all devices are drained, so passes are in order as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from executor.arrays import Flags, Int64
from executor.errors import HprofError
from executor.units import format_count
from profiler.ordering.operations import Operations

NOT_RECORDED: Final = -1
MOST_CLOCK_BYTES: Final = 1 << 29
"""Of the components of all clocks; 8 GPUs that wait for events 2.5 million times have as many."""
MOST_CHAINS: Final = 1024


@dataclass(frozen=True, slots=True)
class HappensBefore:
    """The order of one capture's operations, which are named by their rows."""

    ops: Operations
    position: Int64
    """From 1 in each chain, over all passes."""
    clocks: Int64
    """(rows, chains): how far into each chain."""
    of_chain: Int64
    """The clock of an operation's own chain, a row of `clocks`."""
    of_thread: Int64
    """The issuing thread's when it issued the operation."""
    recorded_by: Int64
    """The `record` that a wait or sync waits for; NOT_RECORDED: none, so it waits for nothing."""

    def ordered(self, first: Int64, second: Int64) -> Flags:
        """Whether each `first` has ended before its `second` begins; `second` was issued later."""
        ops, chain = self.ops, self.ops.chain[first]
        by_itself = (ops.pass_id[first] != ops.pass_id[second]) | (chain == ops.chain[second]) | ops.on_thread[first]
        known = np.maximum(self.clocks[self.of_chain[second], chain], self.clocks[self.of_thread[second], chain])
        return np.asarray(by_itself | (known >= self.position[first]))


def happens_before(ops: Operations) -> HappensBefore:
    """Walk records, waits and syncs once; all other operations take the clock that holds where they were issued.

    Raises HprofError for more streams, or more streams and waits, than there is memory for.
    """
    n_chains = int(ops.chain.max(initial=-1)) + 1
    position = _positions(ops.chain)
    record, is_sync = ops.is_kind("record"), ops.is_kind("sync")
    waiting = ops.is_kind("wait") | is_sync
    n_waits = int(np.count_nonzero(waiting))
    if n_chains > MOST_CHAINS or 8 * n_chains * n_waits > MOST_CLOCK_BYTES:
        raise HprofError(
            f"{format_count(n_waits, 'wait')} of {format_count(n_chains, 'stream')} are more than is held at once; "
            "record fewer passes."
        )
    rows = np.flatnonzero(record | waiting)
    zero = np.zeros(n_chains, np.int64)
    clocks, changed = [zero], np.zeros(len(ops), np.int64)
    recorded_by = np.full(len(ops), NOT_RECORDED, np.int64)
    of_chain, thread = [zero] * n_chains, zero
    events: dict[int, tuple[int, np.ndarray]] = {}  # event -> its record, and what it knew
    current = None
    columns = (rows, ops.pass_id[rows], ops.chain[rows], ops.event[rows], record[rows], is_sync[rows], position[rows])
    for row, pass_id, chain, event, is_record, syncs, at in zip(*(c.tolist() for c in columns), strict=True):
        if pass_id != current:
            current, events = pass_id, {}  # events are numbered anew
        if is_record:
            known = np.maximum(of_chain[chain], thread)
            known[chain] = at
            events[event] = row, known
            continue
        if event not in events:
            continue
        recorded_by[row], known = events[event]
        joined = np.maximum(thread if syncs else of_chain[chain], known)
        if syncs:
            thread = joined
        else:
            of_chain[chain] = joined
        changed[row] = len(clocks)
        clocks.append(joined)
    return HappensBefore(
        ops,
        position,
        np.stack(clocks),
        _held(np.where(is_sync, 0, changed), ops.chain),
        _held(np.where(is_sync, changed, 0), np.zeros(len(ops), np.int64)),
        recorded_by,
    )


def _positions(chain: Int64) -> Int64:
    order = np.argsort(chain, kind="stable")
    sizes = np.bincount(chain)
    position = np.empty(len(chain), np.int64)
    position[order] = np.arange(len(chain)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + 1
    return position


def _held(changed: Int64, group: Int64) -> Int64:
    """The last change so far in each operation's group; changes are numbered upwards."""
    held = np.empty_like(changed)
    for one in np.unique(group):
        mine = group == one
        held[mine] = np.maximum.accumulate(changed[mine])
    return held
