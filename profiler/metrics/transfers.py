"""Counts and bytes: what the rows of each stream add up to, what crossed from host to device, and what the selective
copy saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from executor.arrays import Floats, Int64
from profiler.arithmetic.groups import group_by, sum_by
from profiler.metrics.events import Events
from profiler.schema import ABSENT, COPIES, H2D, MEMORIES

_KEYS: Final = ("process", "device", "role", "stream")


class StreamSums(NamedTuple):
    """One role on one stream of a device; `process` and `device` are ABSENT where the source names none."""

    process: int
    device: int
    role: int
    stream: str | None
    n_rows: int
    length_ns: int  # summed; the rows of a stream run one after the other
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
    columns = [
        groups.count(),
        groups.sum(events.end - events.start),
        n_bytes.sum(axis=1),
        n_sizeless.sum(axis=1),
        *told,
    ]
    names = [events.stream_names[code] if code != ABSENT else None for code in groups.keys["stream"].tolist()]
    keys = (groups.keys[name].tolist() for name in _KEYS[:3])
    return [StreamSums(*row) for row in zip(*keys, names, *(c.tolist() for c in columns), strict=True)]


_TENSOR_KEYS: Final = ("pass_id", "phase", "ubatch", "layer", "process", "device", "tensor")


@dataclass(frozen=True, slots=True)
class Transfers:
    """One element a group; `keys` are the columns that it was grouped by. NaN: the rows do not say."""

    keys: dict[str, Int64]
    bytes_h2d: Floats
    whole_bytes: Floats  # what whole copies of the same tensors would have moved
    selective_saving_bytes: Floats  # bytes not copied thanks to the selective copy


@dataclass(frozen=True, slots=True)
class TransferIndex:
    """Bytes of explicit host to device copies, added up for each tensor and then by `keys`; `by` sums coarser ones."""

    keys: dict[str, Int64]
    n_named: Int64  # tensors whose copies say their whole size
    moved: Floats
    whole: Floats
    saved: Floats

    @classmethod
    def of(cls, events: Events, names: Sequence[str]) -> TransferIndex:
        """Of rows, grouped by those of the names that copies have.

        A tensor that was copied in several pieces says its whole size on each of them, so its whole size is the
        largest that the pieces of one tensor in one layer and ubatch name. Copies that name none (activations,
        token ids) count as whole copies, and save nothing; a group in which no copy names one has no saving.
        """
        rows = np.flatnonzero(events.role == H2D)
        tensors = group_by({name: getattr(events, name)[rows] for name in _TENSOR_KEYS})
        n_bytes = events.n_bytes[rows]
        moved = np.where(tensors.sum(n_bytes < 0) > 0, np.nan, tensors.sum(n_bytes))
        named = np.full(len(tensors), ABSENT, np.int64)
        np.maximum.at(named, tensors.of_row, events.whole_bytes[rows])
        is_named = named >= 0
        groups = group_by({name: tensors.keys[name] for name in names if name in _TENSOR_KEYS})
        return cls(
            keys=groups.keys,
            n_named=groups.sum(is_named),
            moved=groups.sum_floats(moved),
            whole=groups.sum_floats(np.where(is_named, named, moved)),
            saved=groups.sum_floats(np.where(is_named, np.maximum(named - moved, 0), 0)),
        )

    @classmethod
    def joined(cls, parts: Sequence[TransferIndex]) -> TransferIndex:
        """One of all rows; no two parts have rows of the same pass."""
        keys = {name: np.concatenate([part.keys[name] for part in parts]) for name in parts[0].keys}
        sums = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("moved", "whole", "saved")}
        return cls(keys, np.concatenate([part.n_named for part in parts]), **sums)

    def by(self, names: Sequence[str]) -> Transfers:
        """Sums grouped by some of the names."""
        groups = group_by({name: self.keys[name] for name in names})
        moved, whole, saved = map(groups.sum_floats, (self.moved, self.whole, self.saved))
        return Transfers(groups.keys, moved, whole, np.where(groups.sum(self.n_named) > 0, saved, np.nan))
