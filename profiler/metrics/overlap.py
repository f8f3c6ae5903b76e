"""How much copying there was, how much computing, and how much of the copying the computing hid.

busy copy     union of the host-to-device copies of a group, on each device
busy compute  union of the group's compute intervals, on each device
hidden        the part of busy copy during which that device computed anything in the same pass
exposed       busy copy - hidden

A group is a pass, a phase, a ubatch or a layer; rows belong to the group that they serve, not to the moment when they
ran: a copy made ahead for the next layer counts as that layer's, and the layer that computes meanwhile hides it.
With several devices a group's figure is the sum of the devices' unions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from profiler.arithmetic.intervals import Coverage, Int64, Line, either, union
from profiler.metrics.activity import Activity
from profiler.metrics.groups import Floats, Groups, Mask, group_by
from profiler.metrics.roles import COMPUTE, COPIES, H2D
from profiler.metrics.segments import Segments, regrouped

PASS_ON_DEVICE = ("pass_id", "process", "device")


@dataclass(frozen=True, slots=True)
class Overlap:
    """One element a group; `keys` are the columns that it was grouped by. All times in ns."""

    keys: dict[str, Int64]
    busy_copy_ns: Int64
    busy_compute_ns: Int64
    hidden_copy_ns: Int64
    smaller_busy_ns: Int64  # min(busy copy, busy compute), taken on each device

    @property
    def exposed_copy_ns(self) -> Int64:
        """Copy time that no compute covered."""
        return self.busy_copy_ns - self.hidden_copy_ns

    @property
    def overlap_efficiency(self) -> Floats:
        """hidden / min(busy copy, busy compute); NaN where either is zero."""
        return ratio(self.hidden_copy_ns, self.smaller_busy_ns)

    @property
    def hidden_ratio(self) -> Floats:
        """hidden / busy copy; NaN where nothing was copied."""
        return ratio(self.hidden_copy_ns, self.busy_copy_ns)

    def regroup(self, names: Sequence[str]) -> Overlap:
        """These figures added up over groups that agree in fewer of their keys."""
        groups = group_by({name: self.keys[name] for name in names})
        sums = (self.busy_copy_ns, self.busy_compute_ns, self.hidden_copy_ns, self.smaller_busy_ns)
        return Overlap(groups.keys, *map(groups.sum, sums))


def ratio(part: Int64, whole: Int64) -> Floats:
    """part / whole as floats, NaN where whole is zero."""
    quotient: Floats = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return quotient


class OverlapIndex:
    """All copies against the compute of their context, measured once; `by` then gives any grouping's figures.

    context: inside what a compute interval may hide a copy (default: a pass on a device). `line` has the contexts
    laid end to end, and `any_busy` covers the positions on it where a device copied or computed.
    """

    def __init__(self, activity: Activity, context: Sequence[str] = PASS_ON_DEVICE) -> None:
        self._activity, self._context_names = activity, tuple(context)
        copies, computes = activity.of_role(*COPIES), activity.of_role(COMPUTE)
        self.contexts = activity.coarse(context)
        self.line = self._line(copies, computes)
        copied, computed = self._place(copies), self._place(computes)
        self._computing = Coverage(union(*computed))
        self.any_busy = Coverage(either(union(*copied), self._computing.busy))
        self._fine_copy = copies.sums(copies.lengths)
        self._fine_hidden = copies.sums(self._computing.of(*copied))
        self._fine_compute = computes.sums(computes.lengths)
        # Sets that do not meet have a union as long as the sum of their lengths: then any grouping is a sum.
        self._computes_apart = self._computing.busy.total == self._fine_compute.sum()
        directions = activity.coarse((*self._context_names, "role"))
        self._copies_apart = activity.busy_ns(directions, *COPIES).sum() == self._fine_copy.sum()

    def _line(self, *segments: Segments) -> Line:
        """Contexts end to end, long enough for these."""
        spans = (one.spans() for one in segments)
        fine, starts, ends = (np.concatenate(columns) for columns in zip(*spans, strict=True))
        return Line(self.contexts.of_row[fine], starts, ends, len(self.contexts))

    def _place(self, segments: Segments) -> tuple[Int64, Int64]:
        context = segments.spread(self.contexts.of_row)
        return self.line.place(context, segments.starts), self.line.place(context, segments.ends)

    @cached_property
    def is_device(self) -> Mask:
        """Which contexts copied or computed anything."""
        found: Mask = np.diff(self.line.offsets(self.any_busy.busy.starts)) > 0
        return found

    def by(self, names: Sequence[str], roles: tuple[int, ...] = (H2D,)) -> Overlap:
        """Figures of the copies with these roles, grouped by columns of the activity's keys.

        With several roles, 'role' must be among the names: directions are never added up.
        """
        per_device = self._activity.coarse(tuple(dict.fromkeys((*names, *self._context_names))))
        copy, hidden = self._copy_sums(per_device, roles)
        compute = self._compute_sums(per_device)
        return Overlap(per_device.keys, copy, compute, hidden, np.minimum(copy, compute)).regroup(names)

    def _copy_sums(self, groups: Groups, roles: tuple[int, ...]) -> tuple[Int64, Int64]:
        if self._copies_apart:
            wanted = np.isin(self._activity.keys["role"], roles)
            return groups.sum(self._fine_copy * wanted), groups.sum(self._fine_hidden * wanted)
        united = regrouped(self._activity.of_role(*roles), groups.of_row, len(groups))
        context_of = np.empty(len(groups), np.int64)
        context_of[groups.of_row] = self.contexts.of_row
        return united.sums(united.lengths), united.sums(self._hidden(united, context_of))

    def _compute_sums(self, groups: Groups) -> Int64:
        if self._computes_apart:
            return groups.sum(self._fine_compute)
        return self._activity.busy_ns(groups, COMPUTE)

    def _hidden(self, copies: Segments, context_of: Int64) -> Int64:
        context = copies.spread(context_of)
        return self._computing.of(*(self.line.place(context, times) for times in (copies.starts, copies.ends)))
