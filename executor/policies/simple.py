"""The arms whose decision depends on the ubatch's size at most: off, off-whole, on, gated, cpu, full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.passes import Ubatch
from executor.policies.base import AHEAD_WHOLE, INLINE_SELECTIVE, INLINE_WHOLE, Item, Plan, Policy, Regime
from executor.policies.traits import ArmTraits

if TYPE_CHECKING:
    from executor.weights.transfer_units import TransferUnit


_AHEAD = ("on", "auto", "hot")
"""Beside an arm that copies in line, these show what copying ahead is worth."""


class Off(Policy):
    """In line: dense tensors whole; of the experts only those that the router chose."""

    traits = ArmTraits(
        meaning="copies when needed",
        subject="Copying in line",
        copies="inline",
        held_against=_AHEAD,
    )

    def plan(self, item: Item) -> Plan:
        return INLINE_SELECTIVE if item.is_moe else INLINE_WHOLE


class OffWhole(Policy):
    """In line and whole: the control that isolates what the selective copy is worth."""

    traits = ArmTraits(
        meaning="whole copies when needed",
        subject="Copying everything whole",
        copies="inline",
        same_without_experts="off",
        held_against=_AHEAD,
    )

    def plan(self, item: Item) -> Plan:
        return INLINE_WHOLE


class On(Policy):
    """Whole tensors ahead on the copy stream, into `--slots` rotating slots."""

    traits = ArmTraits(
        meaning="prefetch",
        subject="Prefetch",
        copies="ahead",
        reads=("op_offload_min_batch", "slots"),
        held_against=("off",),
    )

    @property
    def n_slots(self) -> int:
        return self.options.slots

    def plan(self, item: Item) -> Plan:
        return AHEAD_WHOLE


class Gated(On):
    """As `on` for dense tensors; experts ahead only in ubatches of at least `--gate-min-batch` tokens."""

    traits = ArmTraits(
        meaning="prefetch in large ubatches",
        subject="Gated prefetch",
        copies="chosen",
        reads=("op_offload_min_batch", "slots", "gate_min_batch"),
        same_without_experts="on",
        held_against=("on",),
    )

    def plan(self, item: Item) -> Plan:
        return AHEAD_WHOLE if self._is_open(item.ubatch) or not item.is_moe else INLINE_SELECTIVE

    def describe(self, ubatch: Ubatch, *, streams_others: bool = False) -> str:
        if self._is_open(ubatch):
            return "on"
        return self.name if streams_others else "off"

    def _is_open(self, ubatch: Ubatch) -> bool:
        return ubatch.n_tokens >= self.options.gate_min_batch


class Cpu(Off):
    """Host tensors are computed on the host at every ubatch size."""

    traits = ArmTraits(
        meaning="computes on the CPU",
        subject="Computing on the host",
        copies="inline",  # what is neither FFN nor expert, as attention under -ngl
        reads=(),
        computes_on_host=True,
        takes_cache=False,
        held_against=_AHEAD,
    )

    def regime(self, n_tokens: int, unit: TransferUnit) -> Regime:
        return "cpu"


class Full(Off):
    """Everything resident: the theoretical maximum. The session places no tensor in host memory for it."""

    traits = ArmTraits(
        meaning="all weights resident",
        subject="Keeping everything resident",
        copies="none",
        reads=(),
        is_resident=True,
        takes_cache=False,
    )

    @property
    def n_slots(self) -> int:
        return 0
