"""What the rows of each stream add up to: counts, bytes, and the memory that copies came from."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from profiler.metrics.events import Events
from profiler.metrics.groups import group_by, sum_by
from profiler.metrics.roles import ABSENT, COPIES, MEMORIES

_KEYS: Final = ("process", "device", "role", "stream")


class StreamSums(NamedTuple):
    """One role on one stream of a device; `process` and `device` are ABSENT where the source names none."""

    process: int
    device: int
    role: int
    stream: str | None
    n_rows: int
    bytes: int  # of the rows that say their size
    n_sizeless: int  # copies that do not
    n_told_memory: int  # copies that say what memory they came from
    pinned_bytes: int
    pageable_bytes: int


def stream_sums(events: Events) -> list[StreamSums]:
    """One entry for each (process, device, role, stream) that occurs."""
    groups = group_by({name: getattr(events, name) for name in _KEYS})
    copies = np.flatnonzero(events.role <= max(COPIES))
    sizes, n_memories = events.n_bytes[copies], len(MEMORIES) + 1
    # by memory too, the last of each stream's stands for ABSENT
    of_copy = groups.of_row[copies] * n_memories + events.memory[copies] % n_memories
    n_bytes, n_sizeless, n_rows = (
        sum_by(of_copy, values, len(groups) * n_memories).reshape(-1, n_memories)
        for values in (np.maximum(sizes, 0), sizes < 0, np.ones(len(copies), np.bool_))
    )
    told = (n_rows[:, :ABSENT].sum(axis=1), *(n_bytes[:, MEMORIES.index(name)] for name in ("pinned", "pageable")))
    columns = [groups.count(), n_bytes.sum(axis=1), n_sizeless.sum(axis=1), *told]
    names = [events.stream_names[code] if code != ABSENT else None for code in groups.keys["stream"].tolist()]
    keys = (groups.keys[name].tolist() for name in _KEYS[:3])
    return [StreamSums(*row) for row in zip(*keys, names, *(c.tolist() for c in columns), strict=True)]
