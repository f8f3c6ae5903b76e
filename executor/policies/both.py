"""The `both` arm: of the experts that a layer needs and the device does not have, CPU and link each take a part.

The part follows from what both took while they worked beside each other: rates measured apart misjudge, as CPU and
link share the memory's speed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final

import numpy as np

from executor.passes import EventRecord, PassResult
from executor.policies.base import DIVIDED_SELECTIVE, Flags, Item, Plan, PolicyOptions, Regime
from executor.policies.hot import Popularity, size_class
from executor.policies.simple import Off
from executor.policies.traits import ArmTraits

if TYPE_CHECKING:
    from executor.weights.transfer_units import TransferUnit

MOST_TOKENS: Final = 512
"""Larger ubatches are copied: the CPU's arithmetic for so many tokens an expert takes far longer than a copy."""
_SMALL: Final = 32  # tokens; up to here an expert's time on the CPU is mostly that of reading it
_TRIES: Final = (
    2  # warm-up passes that try several parts; the first of them is not timed, as steps run for the first time
)
_KEPT: Final = 0.5  # what a new pass leaves of the times before it
_STUMBLES: Final = 20  # one time of so many is left out, the longest, and at least one

Steps = dict[tuple[int, int], list[EventRecord]]
"""The events of one layer's experts in one ubatch, by (ubatch, layer)."""


def _usual(times: Iterable[int]) -> float:
    """The mean, which tokens add up to, without stumbles: a busy machine that makes every tenth layer wait counts."""
    found = sorted(times)
    n_left_out = max(1, len(found) // _STUMBLES) if len(found) > 1 else 0
    return fmean(found[: len(found) - n_left_out])


class SideTimes:
    """What one side took for so many experts of a layer, from the moment at which both could begin."""

    def __init__(self) -> None:
        self._ns: dict[int, float] = {}  # number of experts -> ns

    def learn(self, taken: Iterable[tuple[int, int]]) -> None:
        """Take in a pass's (number of experts, ns)."""
        found: dict[int, list[int]] = defaultdict(list)
        for n_experts, ns in taken:
            found[n_experts].append(ns)
        for n_experts, times in found.items():
            now = _usual(times)
            self._ns[n_experts] = now + _KEPT * (self._ns.get(n_experts, now) - now)

    def expected(self, n_experts: int) -> float | None:
        """Ns for so many: as measured, or by a line through what was; None before any measurement."""
        if n_experts == 0:
            return 0.0
        if n_experts in self._ns or not self._ns:
            return self._ns.get(n_experts)
        numbers, times = np.array(list(self._ns.items())).T
        if numbers.size == 1:
            return float(times[0] / numbers[0] * n_experts)
        slope = max(0.0, float(np.polyfit(numbers, times, 1)[0]))
        return max(0.0, float(times.mean() + slope * (n_experts - numbers.mean())))


@dataclass(slots=True)
class TimesTogether:
    """Both sides, for one size of ubatch and of expert."""

    host: SideTimes
    device: SideTimes
    closing_ns: float = 0.0  # from the later side's end until the host's sums are on the device

    def learn(self, steps: Sequence[_Taken]) -> None:
        """Take in a pass's layers."""
        self.host.learn(step.host for step in steps if step.host is not None)
        self.device.learn(step.device for step in steps if step.device is not None)
        closing = [step.closing_ns for step in steps if step.closing_ns is not None]
        if closing:
            self.closing_ns += (1 - _KEPT if self.closing_ns else 1) * (_usual(closing) - self.closing_ns)

    def best_for_host(self, n_missing: int) -> int | None:
        """How many of the missing experts the host takes, so that both are ready soonest; None: nothing is known."""
        best, least = None, np.inf
        for n in range(n_missing + 1):
            host, device = self.host.expected(n), self.device.expected(n_missing - n)
            if host is None or device is None:
                continue
            needed = max(host, device) + (self.closing_ns if n else 0)
            if needed < least:
                best, least = n, needed
        return best


class Both(Off):
    """Divides the missing experts between CPU and link. The CPU takes those that are used least."""

    traits = ArmTraits(
        meaning="CPU and link share experts",
        subject="Sharing experts between CPU and link",
        copies="inline",
        computes_on_host=True,
        divides=True,
        learns=True,
        same_without_experts="off",
        held_against=("off", "cpu"),
    )

    def __init__(self, name: str, options: PolicyOptions) -> None:
        super().__init__(name, options)
        self._popularity = Popularity()
        self._times: dict[tuple[int, int], TimesTogether] = {}  # by size class of the ubatch, and an expert's bytes
        self._best: dict[tuple[int, int, int], int | None] = {}  # the same and what is missing -> the host's number
        self._expert_bytes: dict[int, int] = {}
        self._order: dict[tuple[int, int], np.ndarray | None] = {}
        self._warmup: int | None = None

    @property
    def min_warmups(self) -> int:
        return _TRIES + 1

    def regime(self, n_tokens: int, unit: TransferUnit) -> Regime:
        return "stream" if unit.n_experts else super().regime(n_tokens, unit)

    def begin_pass(self, *, warmup_number: int | None) -> None:
        self._warmup = warmup_number

    def plan(self, item: Item) -> Plan:
        return DIVIDED_SELECTIVE if item.is_moe and item.ubatch.n_tokens <= MOST_TOKENS else super().plan(item)

    def divide(self, item: Item, missing: Flags) -> Flags | None:
        experts = np.flatnonzero(missing)
        n_host = self._number_for_host(item, experts.size)
        if n_host == 0:
            return None
        order = self._by_popularity(item)
        if order is not None:
            experts = experts[np.argsort(order[experts], kind="stable")]
        on_host = np.zeros_like(missing)
        on_host[experts[experts.size - n_host :]] = True
        return on_host

    def learn(self, result: PassResult) -> None:
        for record in result.experts:
            self._popularity.observe(record.layer, record.n_tokens, record.flags())
        self._order.clear()
        if self._warmup != 0:
            self._learn_times(result)
            self._best.clear()

    def _number_for_host(self, item: Item, n_missing: int) -> int:
        unit, n_tokens = item.unit, item.ubatch.n_tokens
        self._expert_bytes[unit.layer] = unit.expert_bytes
        if self._warmup is not None and self._warmup < _TRIES:
            return n_missing * (1 + (unit.layer + self._warmup) % 3) // (4 if n_tokens <= _SMALL else 8)
        key = (size_class(n_tokens), unit.expert_bytes, n_missing)
        if key not in self._best:
            times = self._times.get(key[:2])
            self._best[key] = None if times is None else times.best_for_host(n_missing)
        best = self._best[key]
        return n_missing // 2 if best is None else best

    def _by_popularity(self, item: Item) -> np.ndarray | None:
        """Each expert's rank (n_experts,), the likeliest first; None before any was seen."""
        key = (item.unit.layer, size_class(item.ubatch.n_tokens))
        if key not in self._order:
            chance = self._popularity.chance_of_use(item.unit.layer, item.ubatch.n_tokens)
            self._order[key] = None if chance is None else np.argsort(np.argsort(-chance, kind="stable"))
        return self._order[key]

    def _learn_times(self, result: PassResult) -> None:
        tokens = {ubatch.ubatch: ubatch.n_tokens for ubatch in result.ubatches}
        taken: dict[tuple[int, int], list[_Taken]] = defaultdict(list)
        for (ubatch, layer), events in _steps_of_experts(result.events).items():
            if layer not in self._expert_bytes:
                continue
            taken[size_class(tokens[ubatch]), self._expert_bytes[layer]].append(_taken(events))
        for key, steps in taken.items():
            self._times.setdefault(key, TimesTogether(SideTimes(), SideTimes())).learn(steps)


def _steps_of_experts(events: Iterable[EventRecord]) -> Steps:
    found: Steps = defaultdict(list)
    for event in events:
        is_copy = (event.kind in ("h2d", "d2h") and event.n_experts is not None) or event.name == "copy activations"
        if event.layer is not None and (is_copy or event.name == "experts"):
            found[event.ubatch, event.layer].append(event)
    return found


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a layer took. Of a side: (experts, ns) from the step's first copy on; None where it had nothing."""

    host: tuple[int, int] | None
    device: tuple[int, int] | None
    closing_ns: int | None  # None: the host had nothing


def _taken(events: Sequence[EventRecord]) -> _Taken:
    begin = min(event.t_start for event in events)
    n_copied = sum(event.n_experts or 0 for event in events if event.kind == "h2d")
    on_host = [event for event in events if event.kind == "cpu_compute" and event.n_experts]
    on_device = [event.t_end for event in events if event.kind == "compute"]
    back = [event.t_end for event in events if event.kind == "h2d" and event.name == "copy activations"]
    host_end = max((event.t_end for event in on_host), default=begin)
    device_end = max(on_device, default=begin)
    return _Taken(
        host=(on_host[-1].n_experts or 0, host_end - begin) if on_host else None,
        device=(n_copied, device_end - begin) if on_device and n_copied else None,
        closing_ns=max(0, back[-1] - max(host_end, device_end)) if on_host and back else None,
    )
