"""Bytes that crossed from host to device, and bytes that the selective copy saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profiler.intervals import Int64
from profiler.metrics.events import Events
from profiler.metrics.groups import Floats, Groups, group_by
from profiler.metrics.roles import ABSENT, H2D


@dataclass(frozen=True, slots=True)
class Transfers:
    """One element a group; `keys` are the columns that it was grouped by. NaN: the rows do not say."""

    keys: dict[str, Int64]
    bytes_h2d: Floats
    whole_bytes: Floats  # what whole copies of the same tensors would have moved
    selective_saving_bytes: Floats  # bytes not copied thanks to the selective copy


class TransferIndex:
    """Bytes of explicit host to device copies, added up for each tensor once; `by` then sums any grouping.

    A tensor that was copied in several pieces says its whole size on each of them, so its whole size is the
    largest that the pieces of one tensor in one layer and ubatch name. Copies that name none (activations,
    token ids) count as whole copies, and save nothing; a group in which no copy names one has no saving.
    """

    def __init__(self, events: Events, fine: Groups) -> None:
        rows = np.flatnonzero(events.role == H2D)
        n_bytes = events.n_bytes[rows]
        tensors = group_by({"fine": fine.of_row[rows], "tensor": events.tensor[rows]})
        self._keys = {name: values[tensors.keys["fine"]] for name, values in fine.keys.items()}
        self._moved = np.where(tensors.sum(n_bytes < 0) > 0, np.nan, tensors.sum(n_bytes))
        self._named = np.full(len(tensors), ABSENT, np.int64)
        np.maximum.at(self._named, tensors.of_row, events.whole_bytes[rows])

    def by(self, names: Sequence[str]) -> Transfers:
        """Sums grouped by these columns: 'pass_id', 'phase', 'ubatch', 'layer', 'device', 'process'."""
        is_named = self._named >= 0
        saving = np.where(is_named, np.maximum(self._named - self._moved, 0), 0)
        groups = group_by({name: self._keys[name] for name in names})
        return Transfers(
            groups.keys,
            groups.sum_floats(self._moved),
            groups.sum_floats(np.where(is_named, self._named, self._moved)),
            np.where(groups.sum(is_named) > 0, groups.sum_floats(saving), np.nan),
        )
