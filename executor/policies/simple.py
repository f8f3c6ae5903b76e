"""The arms whose decision depends on the ubatch's size at most: off, off-whole, on, gated, cpu, full."""

from __future__ import annotations

from executor.passes import Ubatch
from executor.policies.base import (
    AHEAD_WHOLE,
    INLINE_SELECTIVE,
    INLINE_WHOLE,
    Item,
    Plan,
    Policy,
    Regime,
)
from executor.weights.transfer_units import TransferUnit


class Off(Policy):
    """In line: dense tensors whole; of the experts only those that the router chose."""

    def plan(self, item: Item) -> Plan:
        return INLINE_SELECTIVE if item.is_moe else INLINE_WHOLE


class OffWhole(Policy):
    """In line and whole: the control that isolates what the selective copy is worth."""

    def plan(self, item: Item) -> Plan:
        return INLINE_WHOLE


class On(Policy):
    """Whole tensors ahead on the copy stream, into `--slots` rotating slots."""

    @property
    def n_slots(self) -> int:
        return self.options.slots

    def plan(self, item: Item) -> Plan:
        return AHEAD_WHOLE


class Gated(On):
    """As `on` for dense tensors; experts ahead only in ubatches of at least `--gate-min-batch` tokens."""

    def plan(self, item: Item) -> Plan:
        return AHEAD_WHOLE if self._is_open(item.ubatch) or not item.is_moe else INLINE_SELECTIVE

    def describe(self, ubatch: Ubatch) -> str:
        return "on" if self._is_open(ubatch) else "off"

    def _is_open(self, ubatch: Ubatch) -> bool:
        return ubatch.n_tokens >= self.options.gate_min_batch


class Cpu(Off):
    """Host tensors are computed on the host at every ubatch size."""

    def regime(self, n_tokens: int, split: TransferUnit) -> Regime:
        return "cpu"


class Full(Off):
    """Everything resident: the theoretical maximum. The session places no tensor in host memory for it."""
