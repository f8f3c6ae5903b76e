"""The `both` arm: of the experts that a layer needs and the device does not have, CPU and link each take a part.

The part follows from what both took while they worked beside each other: rates measured apart misjudge, as CPU and
link share the memory's speed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from executor.arrays import Flags, Floats, Int64
from executor.passes import EventRecord, PassResult, Ubatch
from executor.policies.base import DIVIDED_SELECTIVE, Item, Plan, PolicyOptions, Regime
from executor.policies.hot import Popularity, size_class
from executor.policies.simple import Off
from executor.policies.traits import ArmTraits

if TYPE_CHECKING:
    from executor.weights.transfer_units import TransferUnit

MOST_TOKENS: Final = 512
"""Larger ubatches are copied: the CPU's arithmetic for so many tokens an expert takes far longer than a copy."""
_TRIES: Final = 3
"""Warm-up passes that try several parts; the first of them is not timed, as steps run for the first time."""
_PARTS: Final = (0.5, 1.0, 0.25, 0.0, 0.75)  # of the missing experts, that the CPU takes in turn, by layer
_STRIDE: Final = 3  # so that even three layers meet all parts in two passes
_KEPT: Final = 0.5  # what a new pass leaves of the weight of those before it
_REMEMBERED: Final = 8.0  # times; as many of one pass count, and as many of those before it are not forgotten
_DOUBT: Final = 0.5  # the weight with which the line stands beside a number's own times
_STUMBLES: Final = 50  # one time of so many, the longest, and at least one of several, counts as the next longest
_LOOK_EVERY: Final = 256  # layers
_LOOK_COST: Final = 0.003  # the share of time that looking at one other part may cost
_LOOK_MOST: Final = 2.0  # times the best that one look may cost beyond it
_SPREAD: Final = (0.6180339887, 0.4142135624, 0.7320508076, 0.6457513111)
"""Multiples of these lie evenly between 0 and 1: by token, layer, number and pass, so that looks spread over all."""

Steps = dict[tuple[int, int], list[EventRecord]]
"""The events of one layer's experts in one ubatch, by (ubatch, layer)."""


def _usual(times: Iterable[float]) -> float:
    """The mean, which tokens add up to; what happens once in a pass does not count, what happens often does."""
    found = sorted(times)
    n_cut = max(1, len(found) // _STUMBLES) if len(found) >= _REMEMBERED else 0
    kept = found[: len(found) - n_cut]
    return fmean([*kept, *[kept[-1]] * n_cut])


@dataclass(slots=True)
class _Seen:
    """Times that belong together: their mean in ns, and how many they count as."""

    mean: float = 0.0
    weight: float = 0.0

    def learn(self, times: Sequence[float]) -> None:
        """Take in a pass's. A few, as a look gives, change little: a host that stalls at times is not fast."""
        before = min(self.weight, max(_REMEMBERED, _KEPT * self.weight))
        now = min(_REMEMBERED, len(times))
        self.mean = (self.mean * before + _usual(times) * now) / (before + now)
        self.weight = before + now


class SideTimes:
    """What so many experts of a layer took: a line through all numbers, and how far those seen lie beside it."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def learn(self, taken: Iterable[tuple[int, float]]) -> None:
        """Take in a pass's (number of experts, ns).

        Where many of a number were seen, the numbers that were not are expected to have changed like it.
        """
        found: dict[int, list[float]] = defaultdict(list)
        for n_experts, ns in taken:
            found[n_experts].append(ns)
        changes = []
        for n_experts, times in found.items():
            seen = self._seen.setdefault(n_experts, _Seen())
            before = seen.mean
            seen.learn(times)
            if before and len(times) >= _REMEMBERED:
                changes.append(seen.mean / before)
        if changes:
            for n_experts in self._seen.keys() - found.keys():
                self._seen[n_experts].mean *= fmean(changes)

    def expected(self, n_experts: npt.ArrayLike) -> Floats:
        """Ns for each of these numbers, in their shape; infinite before any was measured, and 0 for none."""
        asked = np.asarray(n_experts)
        if not self._seen:
            return np.where(asked == 0, 0.0, np.inf)
        numbers = np.array(sorted(self._seen))
        means = np.array([self._seen[n].mean for n in numbers.tolist()])
        if numbers.size == 1:
            return np.asarray(asked * (means[0] / numbers[0]))
        weights = np.array([self._seen[n].weight for n in numbers.tolist()])
        centre, middle = np.average(numbers, weights=weights), np.average(means, weights=weights)
        spread = float(np.sum(weights * (numbers - centre) ** 2))
        slope = max(0.0, float(np.sum(weights * (numbers - centre) * (means - middle))) / spread)
        beside = (means - middle - slope * (numbers - centre)) * weights / (weights + _DOUBT)
        there = middle + slope * (asked - centre) + np.interp(asked, numbers, beside)
        return np.where(asked == 0, 0.0, np.maximum(0.0, there))


class TimesTogether:
    """What layers took, for one size of ubatch and of expert: divided ones by side, and those that one side had alone.

    A divided layer takes what its later side is expected to, and some time beyond: the way of the host's sums to the
    device, and what it costs that now one side is the later and now the other.
    """

    def __init__(self) -> None:
        self._host, self._device = SideTimes(), SideTimes()
        self._all_host, self._all_device = SideTimes(), SideTimes()
        self._beyond = _Seen()

    def learn(self, layers: Sequence[Taken]) -> None:
        """Take in a pass's layers."""
        divided = [one for one in layers if one.n_host and one.n_device]
        self._host.learn((one.n_host, one.host_ns) for one in divided)
        self._device.learn((one.n_device, one.device_ns) for one in divided)
        self._all_host.learn((one.n_host, one.layer_ns) for one in layers if one.n_host and not one.n_device)
        self._all_device.learn((one.n_device, one.layer_ns) for one in layers if one.n_device and not one.n_host)
        if divided:
            later = self._later([one.n_host for one in divided], [one.n_device for one in divided])
            self._beyond.learn((np.array([one.layer_ns for one in divided]) - later).tolist())

    def expected(self, n_missing: int) -> Floats:
        """The layer's ns by how many of those missing the host takes, (n_missing + 1,); infinite: nothing is known."""
        n_host = np.arange(n_missing + 1)
        found = self._later(n_host, n_missing - n_host) + np.where(n_host > 0, self._beyond.mean, 0.0)
        for n, side in ((0, self._all_device), (n_missing, self._all_host)):
            alone = side.expected(n_missing)
            if np.isfinite(alone):
                found[n] = alone
        return found

    def best_for_host(self, n_missing: int) -> int | None:
        """How many of the missing experts the host takes, so that the layer ends soonest; None: nothing is known."""
        return soonest(self.expected(n_missing).tolist())

    def others(self, n_missing: int, best: int) -> list[tuple[int, int]]:
        """What else to look at now and then: other numbers for the host, and once in how many layers each.

        They are each side alone, the best division, and what lies beside the choice. The more one is expected to
        cost, the more seldom it is tried; what would cost a single pass too much is not, as what lies beside the choice
        tells where to go.
        """
        expected = self.expected(n_missing).tolist()
        divided = min(range(1, n_missing), key=expected.__getitem__, default=0)
        numbers = {0, n_missing, divided, max(0, best - 1), min(n_missing, best + 1)}
        least, found = expected[best], []
        for n in sorted(numbers - {best}):
            more = expected[n] / least - 1 if least else 0.0
            if not math.isfinite(more):
                found.append((n, _LOOK_EVERY))
            elif more <= _LOOK_MOST or abs(n - best) == 1:
                found.append((n, max(_LOOK_EVERY, math.ceil(more / _LOOK_COST))))
        return found

    def _later(self, n_host: npt.ArrayLike, n_device: npt.ArrayLike) -> Floats:
        return np.maximum(self._host.expected(n_host), self._device.expected(n_device))


def soonest(expected_ns: Sequence[float]) -> int | None:
    """Which division ends soonest: the first is the device's alone, the last the host's; None: none is known.

    One between them is taken only where it ends before both.
    """
    order = sorted(range(len(expected_ns)), key=lambda n: (expected_ns[n], 0 < n < len(expected_ns) - 1, n))
    return order[0] if order and expected_ns[order[0]] < np.inf else None


class Both(Off):
    """Divides the missing experts between CPU and link. The CPU takes those of the fewest rows,
    and among them those that were used least so far."""

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
        self._best: dict[tuple[int, int, int], _Choice] = {}  # the same and what is missing
        self._expert_bytes: dict[int, int] = {}
        self._order: dict[tuple[int, int], np.ndarray | None] = {}
        self._warmup: int | None = None
        self._n_passes = 0

    @property
    def min_warmups(self) -> int:
        return _TRIES + 1

    def regime(self, n_tokens: int, unit: TransferUnit) -> Regime:
        return "stream" if unit.n_experts else super().regime(n_tokens, unit)

    def begin_pass(self, *, warmup_number: int | None) -> None:
        self._warmup = warmup_number

    def plan(self, item: Item) -> Plan:
        return DIVIDED_SELECTIVE if item.is_moe and item.ubatch.n_tokens <= MOST_TOKENS else super().plan(item)

    def describe(self, ubatch: Ubatch, *, streams_others: bool = False) -> str:
        is_copied_by_off = ubatch.n_tokens >= self.options.op_offload_min_batch
        return "off" if ubatch.n_tokens > MOST_TOKENS and is_copied_by_off else self.name

    def n_for_host(self, item: Item, n_missing: int) -> int:
        unit, n_tokens = item.unit, item.ubatch.n_tokens
        self._expert_bytes[unit.layer] = unit.expert_bytes
        turn = item.ubatch.n_past // n_tokens
        if self._warmup is not None and self._warmup < _TRIES:
            return int(n_missing * _PARTS[(turn + unit.layer + _STRIDE * self._warmup) % len(_PARTS)])
        key = (size_class(n_tokens), unit.expert_bytes, n_missing)
        if key not in self._best:
            self._best[key] = _Choice.of(self._times.get(key[:2]), n_missing)
        choice = self._best[key]
        if self._warmup is not None:  # the last: what lies beside it
            return min(n_missing, max(0, choice.best + (turn + unit.layer) % 3 - 1))
        return choice.at(turn, unit.layer, self._n_passes)

    def divide(self, item: Item, missing: Flags, rows: Int64) -> Flags | None:
        experts = missing.nonzero()[0]
        n_host = self.n_for_host(item, experts.size)
        if n_host == 0:
            return None
        rank, order = self._by_popularity(item), -missing.size * rows[experts]
        if rank is not None:
            order += rank[experts]
        experts = experts[np.argsort(order, kind="stable")]
        on_host = np.zeros_like(missing)
        on_host[experts[experts.size - n_host :]] = True
        return on_host

    def learn(self, result: PassResult) -> None:
        for record in result.experts:
            self._popularity.observe(record.layer, record.n_tokens, record.flags())
        self._order.clear()
        self._n_passes += 1
        if self._warmup != 0:
            self._learn_times(result)
            self._best.clear()

    def _by_popularity(self, item: Item) -> np.ndarray | None:
        """Each expert's rank (n_experts,), the likeliest first; None before any was seen."""
        key = (item.unit.layer, size_class(item.ubatch.n_tokens))
        if key not in self._order:
            chance = self._popularity.chance_of_use(item.unit.layer, item.ubatch.n_tokens)
            self._order[key] = None if chance is None else np.argsort(np.argsort(-chance, kind="stable"))
        return self._order[key]

    def _learn_times(self, result: PassResult) -> None:
        tokens = {(record.ubatch, record.layer): record.n_tokens for record in result.experts}  # the last has fewer
        taken: dict[tuple[int, int], list[Taken]] = defaultdict(list)
        begins = _begins(result.events)
        for (ubatch, layer), events in _steps_of_experts(result.events).items():
            if layer in self._expert_bytes:
                key = size_class(tokens[ubatch, layer]), self._expert_bytes[layer]
                taken[key].append(_taken(events, begins.get((ubatch, layer + 1))))
        for key, layers in taken.items():
            self._times.setdefault(key, TimesTogether()).learn(layers)


@dataclass(frozen=True, slots=True)
class _Choice:
    """How many the host takes, and what else to look at: other numbers, and once in how many layers each."""

    best: int
    others: list[tuple[int, int]]

    @classmethod
    def of(cls, times: TimesTogether | None, n_missing: int) -> _Choice:
        best = None if times is None else times.best_for_host(n_missing)
        if times is None or best is None:
            return cls(n_missing // 2, [])
        return cls(best, times.others(n_missing, best))

    def at(self, turn: int, layer: int, n_passes: int) -> int:
        """The number for a layer of a ubatch: its place says whether another than the best is looked at.

        Where the host has nothing to do otherwise, all layers of a ubatch are: its threads sleep, and the first layer
        only wakes them up.
        """
        by_turn, by_layer, by_number, by_pass = _SPREAD
        place = (1 + turn) * by_turn + n_passes * by_pass + (layer * by_layer if self.best else 0.0)
        for n, every in self.others:
            if (place + n * by_number) % 1.0 < 1 / every:
                return n
        return self.best


def _steps_of_experts(events: Iterable[EventRecord]) -> Steps:
    found: Steps = defaultdict(list)
    for event in events:
        is_copy = (event.kind in ("h2d", "d2h") and event.n_experts is not None) or event.name == "copy activations"
        if event.layer is not None and (is_copy or event.name == "experts"):
            found[event.ubatch, event.layer].append(event)
    return found


def _begins(events: Iterable[EventRecord]) -> dict[tuple[int, int], int]:
    """When each layer of each ubatch began, by (ubatch, layer)."""
    found: dict[tuple[int, int], int] = {}
    for event in events:
        if event.layer is not None and event.kind in ("compute", "h2d", "d2h", "cpu_compute"):
            key = event.ubatch, event.layer
            found[key] = min(event.t_start, found.get(key, event.t_start))
    return found


@dataclass(frozen=True, slots=True)
class Taken:
    """What a layer's missing experts took, in ns from the moment at which both sides could begin.

    `layer_ns` is the time until the next layer begins: what follows from a division, and not from a side, is in it.
    """

    n_host: int
    host_ns: int
    n_device: int
    device_ns: int
    layer_ns: int


def _taken(events: Sequence[EventRecord], next_begins: int | None) -> Taken:
    begin = min(event.t_start for event in events)
    end = max(event.t_end for event in events)
    on_host = [event for event in events if event.kind == "cpu_compute" and event.n_experts]
    on_device = [event.t_end for event in events if event.kind == "compute"]
    return Taken(
        n_host=on_host[-1].n_experts or 0 if on_host else 0,
        host_ns=max((event.t_end for event in on_host), default=begin) - begin,
        n_device=sum(event.n_experts or 0 for event in events if event.kind == "h2d"),
        device_ns=max(on_device, default=begin) - begin,
        layer_ns=max(end, next_begins or end) - begin,
    )
