"""The `auto` arm: for each ubatch the cheapest of off, on and hot."""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import median

from executor.arrays import Flags
from executor.passes import PassResult, Ubatch, UbatchRecord
from executor.policies.base import AHEAD_WHOLE, Item, Plan, Policy, PolicyOptions
from executor.policies.hot import Hot, size_class
from executor.policies.simple import Off, On
from executor.policies.traits import ArmTraits

_KEPT = 5  # the latest times of each candidate
_ROUNDS = 2  # warm-up passes a candidate: the first teaches `hot` what it uses in the second, which is timed

SizeAndDepth = tuple[int, int]
"""Size class and depth class of a ubatch."""


class Auto(Policy):
    """Each candidate serves some warm-up passes; then the one that took the least time at this size and depth.

    Dense tensors go ahead under each of them, as in `on`: there is no selective copy to give up.
    Where a candidate was not measured, the formulas decide with measured C (compute), T (whole copy) and D
    (distinct share): off C + D T, on max(C, T), hot max(C, h T) + (D - h) T with h = min(D, C / T).
    """

    traits = ArmTraits(
        meaning="the cheapest of them for each ubatch",
        subject="The automatic choice",
        copies="chosen",
        reads=("op_offload_min_batch", "slots"),
        learns=True,
        same_without_experts="on",
        held_against=("on",),
    )

    def __init__(self, name: str, options: PolicyOptions) -> None:
        super().__init__(name, options)
        self.hot = Hot("hot", options)
        self.candidates: dict[str, Policy] = {"hot": self.hot, "on": On("on", options), "off": Off("off", options)}
        self._taken_ns: dict[tuple[SizeAndDepth, str], deque[int]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._forced: str | None = None
        self._is_teaching = False
        self._chosen: dict[int, str] = {}
        self._bytes_of_layer: dict[int, int] = {}

    @property
    def n_slots(self) -> int:
        return self.options.slots

    @property
    def min_warmups(self) -> int:
        return _ROUNDS * len(self.candidates)

    def begin_pass(self, *, warmup_number: int | None) -> None:
        names = list(self.candidates)
        self._forced = None if warmup_number is None else names[warmup_number % len(names)]
        self._is_teaching = warmup_number is not None and warmup_number < len(names)
        self._chosen.clear()

    def plan(self, item: Item) -> Plan:
        if not item.is_moe:
            return AHEAD_WHOLE
        self._bytes_of_layer[item.unit.layer] = item.unit.n_bytes
        return self.candidates[self._choice(item.ubatch)].plan(item)

    def describe(self, ubatch: Ubatch, *, streams_others: bool = False) -> str:
        choice = self._choice(ubatch)
        return self.name if choice == "off" and streams_others else choice

    def observe(self, item: Item, used: Flags) -> None:
        self.hot.observe(item, used)

    def learn(self, result: PassResult) -> None:
        self.hot.learn(result)
        served_by = {ubatch.ubatch: self._chosen_for(ubatch) for ubatch in result.ubatches}
        for record in result.experts:
            if served_by.get(record.ubatch) == "on":  # which never asks for the flags during a pass
                self.hot.popularity.observe(record.layer, record.n_tokens, record.flags())
        for ubatch in () if self._is_teaching else result.ubatches:
            self.took(served_by[ubatch.ubatch], ubatch, ubatch.t_end - ubatch.t_start)

    def _chosen_for(self, ubatch: UbatchRecord) -> str:
        """The candidate, where `describe` told of one or of itself."""
        return ubatch.policy if ubatch.policy in self.candidates else "off"

    def took(self, name: str, ubatch: Ubatch | UbatchRecord, ns: int) -> None:
        """Learn how long a candidate took for a ubatch."""
        self._taken_ns[size_and_depth(ubatch), name].append(ns)

    def _choice(self, ubatch: Ubatch) -> str:
        if self._forced is not None:
            return self._forced
        if ubatch.number not in self._chosen:
            self._chosen[ubatch.number] = min(self.candidates, key=lambda name: self._cost_ns(name, ubatch))
        return self._chosen[ubatch.number]

    def _cost_ns(self, name: str, ubatch: Ubatch) -> float:
        taken = self._taken_ns.get((size_and_depth(ubatch), name))
        return median(taken) if taken else self._formula_ns(name, ubatch)

    def _formula_ns(self, name: str, ubatch: Ubatch) -> float:
        hot = self.hot
        compute, speed = hot.times.compute_ns(ubatch), hot.times.bytes_per_ns
        if compute is None or speed is None or not self._bytes_of_layer:
            return {"off": 0.0, "on": 1.0, "hot": 2.0}[name]  # nothing known: copy in line, which is never wrong
        copy = sum(self._bytes_of_layer.values()) / len(self._bytes_of_layer) / speed
        shares = [hot.popularity.expected_share(layer, ubatch.n_tokens) for layer in self._bytes_of_layer]
        known = [share for share in shares if share is not None]
        distinct = sum(known) / len(known) if known else 1.0
        return layer_cost_ns(name, compute, copy, distinct)


def size_and_depth(ubatch: Ubatch | UbatchRecord) -> SizeAndDepth:
    """Ubatches that are alike in both are served by the same candidate."""
    return size_class(ubatch.n_tokens), size_class(1 + ubatch.n_past)


def layer_cost_ns(name: str, compute_ns: float, copy_ns: float, distinct: float) -> float:
    """A layer's time under a candidate, from C, T (whole copy) and D (distinct share)."""
    if name == "off":
        return compute_ns + distinct * copy_ns
    if name == "on":
        return max(compute_ns, copy_ns)
    hidden = min(distinct, compute_ns / copy_ns)
    return max(compute_ns, hidden * copy_ns) + (distinct - hidden) * copy_ns
