"""Bytes that crossed from host to device, and bytes that the selective copy saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from profiler.arithmetic.intervals import Int64
from profiler.metrics.events import Events
from profiler.metrics.groups import Floats, group_by
from profiler.metrics.roles import ABSENT, H2D

_TENSOR_KEYS: Final = ("pass_id", "phase", "ubatch", "layer", "process", "device", "tensor")


@dataclass(frozen=True, slots=True)
class Transfers:
    """One element a group; `keys` are the columns that it was grouped by. NaN: the rows do not say."""

    keys: dict[str, Int64]
    bytes_h2d: Floats
    whole_bytes: Floats  # what whole copies of the same tensors would have moved
    selective_saving_bytes: Floats  # bytes not copied thanks to the selective copy


class TransferIndex:
    """Bytes of explicit host to device copies, added up for each tensor and then by `names`; `by` sums coarser ones.

    A tensor that was copied in several pieces says its whole size on each of them, so its whole size is the
    largest that the pieces of one tensor in one layer and ubatch name. Copies that name none (activations,
    token ids) count as whole copies, and save nothing; a group in which no copy names one has no saving.
    """

    def __init__(self, events: Events, names: Sequence[str]) -> None:
        rows = np.flatnonzero(events.role == H2D)
        tensors = group_by({name: getattr(events, name)[rows] for name in _TENSOR_KEYS})
        n_bytes = events.n_bytes[rows]
        moved = np.where(tensors.sum(n_bytes < 0) > 0, np.nan, tensors.sum(n_bytes))
        named = np.full(len(tensors), ABSENT, np.int64)
        np.maximum.at(named, tensors.of_row, events.whole_bytes[rows])
        is_named = named >= 0
        groups = group_by({name: tensors.keys[name] for name in names if name in _TENSOR_KEYS})
        self._keys, self._n_named = groups.keys, groups.sum(is_named)
        self._moved = groups.sum_floats(moved)
        self._whole = groups.sum_floats(np.where(is_named, named, moved))
        self._saved = groups.sum_floats(np.where(is_named, np.maximum(named - moved, 0), 0))

    def by(self, names: Sequence[str]) -> Transfers:
        """Sums grouped by some of the names."""
        groups = group_by({name: self._keys[name] for name in names})
        moved, whole, saved = map(groups.sum_floats, (self._moved, self._whole, self._saved))
        return Transfers(groups.keys, moved, whole, np.where(groups.sum(self._n_named) > 0, saved, np.nan))
