"""What an arm's own policy decides, asked point by point: where each step of each layer computes, and what is copied.

The policies are the executor's; those that learn from passes are told instead what they would learn: `hot` each
expert's chance of use and how long a layer computes, `auto` how long a ubatch takes under each arm that it chooses
from, `both` what either side takes (`profiler.predicting.divided`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from executor.arrays import Flags, Floats
from executor.passes import Ubatch
from executor.policies import make_policy
from executor.policies.auto import Auto
from executor.policies.base import Item, Plan, Policy, PolicyOptions
from executor.policies.hot import Hot, size_class
from executor.streaming.expert_cache import shared_out
from executor.weights.transfer_units import TransferUnit
from profiler.predicting.expert_use import ExpectedUse, expected_runs
from profiler.predicting.layout import Layout


@dataclass(slots=True)
class StepCopies:
    """One step of one layer at every point: elements are points.

    `ahead_*` goes before the step is reached, `late_*` when it is; `late_ahead` says that what is late goes on the
    copy stream. `waits`: the host must know the router's choice. `on_host`: the CPU computes, and nothing is copied.
    `inside_bytes` go from the bank into the slot. `divided`: CPU and device share the experts that are missing; what
    is copied follows from how (`profiler.predicting.divided`).
    """

    ahead_bytes: Floats
    ahead_copies: Floats
    late_bytes: Floats
    late_copies: Floats
    late_ahead: Flags
    waits: Flags
    on_host: Flags
    divided: Flags
    inside_bytes: Floats

    @classmethod
    def none(cls, n_points: int) -> StepCopies:
        a, b, c, d, e = np.zeros((5, n_points))
        w, x, y, z = np.zeros((4, n_points), np.bool_)
        return cls(a, b, c, d, w, x, y, z, e)

    def at(self, points: NDArray[np.intp]) -> StepCopies:
        """The same for other points, each named by its number here."""
        return StepCopies(*(getattr(self, one.name)[points] for one in fields(self)))

    def where(self, present: Flags) -> StepCopies:
        """The same where the step is there, and nothing elsewhere."""
        return StepCopies(*(getattr(self, one.name) * present for one in fields(self)))

    @property
    def n_bytes(self) -> Floats:
        return self.ahead_bytes + self.late_bytes


@dataclass(frozen=True, slots=True)
class Bank:
    """An expert cache on one device. `layers`: the places, among the layers with experts, of those that share it."""

    n_places: int
    expert_bytes: int
    layers: tuple[int, ...]


KnownCopies = dict[tuple[object, ...], StepCopies]
"""What was decided already, for the same plan under any placement."""


@dataclass(frozen=True, slots=True)
class Decider:
    """An arm's policy under a layout. `fills_bank`: whether small batches come, which alone write the expert cache.
    `warmup`: the number of the warm-up pass that is asked about; None: a measured one.
    """

    layout: Layout
    policy: Policy
    use: ExpectedUse | None
    fills_bank: bool = True
    warmup: int | None = None
    known: KnownCopies = field(default_factory=dict, repr=False, compare=False)
    banks: Mapping[int, Bank] = field(default_factory=dict)
    """By layer; none where the arm has no cache."""

    @property
    def auto(self) -> Auto | None:
        """The policy, where it chooses by ubatch among others, which it must be told the times of."""
        inner = getattr(self.policy, "inner", self.policy)
        return inner if isinstance(inner, Auto) else None

    @property
    def streams_ahead(self) -> bool:
        return self.policy.streams_ahead

    @property
    def n_slots(self) -> int:
        return max(1, self.policy.n_slots)

    def ask(self, n_tokens: Floats, n_past: Floats) -> tuple[Floats, NDArray[np.intp]]:
        """(2, asked): the ubatches among these that the policy may tell apart, and which of them each one is."""
        learns = self.policy.traits.learns
        grain = [round(2 ** (size_class(1 + int(past)) / 2)) - 1.0 if learns else 0.0 for past in n_past]
        asked, back = np.unique(np.stack([n_tokens, grain]), axis=1, return_inverse=True)
        return asked, back.ravel()

    def copies(self, layer: int, step: str, asked: Floats) -> StepCopies | None:
        """What the policy does for a step of a layer in the ubatches that `ask` gave; None: weights are resident."""
        unit = self.layout.units.get((layer, step))
        if unit is None or self.policy.traits.is_resident:
            return None
        # the number of slots decides when copies go, and not which
        options = replace(self.policy.options, slots=0)
        key = (self.policy.name, options, step, layer, unit.n_bytes, self.banks.get(layer), asked.tobytes())
        if key not in self.known:
            self.known[key] = self._asked(unit, asked)
        return self.known[key]

    def _asked(self, unit: TransferUnit, asked: Floats) -> StepCopies:
        found = StepCopies.none(asked.shape[1])
        self.policy.begin_pass(warmup_number=self.warmup)  # ubatches are numbered anew here
        for point, (n, past) in enumerate(asked.T):
            self._decide(found, point, unit, Ubatch(point, "prefill", int(n), int(past), n_outputs=0))
        return found

    def _decide(self, found: StepCopies, point: int, unit: TransferUnit, ubatch: Ubatch) -> None:
        if unit.what in ("ffn", "experts") and self.policy.regime(ubatch.n_tokens, unit) == "cpu":
            found.on_host[point] = True
            return
        plan = self.policy.plan(Item(0, ubatch, unit))
        found.waits[point] = plan.needs_routing and unit.n_experts > 0
        found.late_ahead[point] = plan.when == "ahead"
        if plan.what == "whole":
            if plan.when == "ahead":
                found.ahead_bytes[point], found.ahead_copies[point] = unit.n_bytes, 1
            else:
                found.late_bytes[point], found.late_copies[point] = unit.n_bytes, 1
            return
        self._selective(found, point, unit, ubatch, plan)

    def _selective(self, found: StepCopies, point: int, unit: TransferUnit, ubatch: Ubatch, plan: Plan) -> None:
        assert self.use is not None
        found.divided[point] = plan.divided
        if plan.divided:
            return
        used = self.use.chance_of_use(ubatch.n_tokens)[self.layout.moe_layers.index(unit.layer)]
        chance = used if plan.when == "ahead" else self.missing(unit.layer, ubatch.n_tokens)
        bank = self.banks.get(unit.layer)
        if plan.what == "bank" and bank is not None and used.sum() <= bank.n_places:
            found.late_bytes[point], found.late_copies[point] = chance.sum() * unit.expert_bytes, chance.sum()
            return
        found.inside_bytes[point] = (used - chance).sum() * unit.expert_bytes
        if plan.hot is not None and plan.hot.any():
            found.ahead_bytes[point] = plan.hot.sum() * unit.expert_bytes
            found.ahead_copies[point] = expected_runs(plan.hot.astype(np.float64))
            chance = np.where(plan.hot, 0.0, chance)
        found.late_bytes[point] = chance.sum() * unit.expert_bytes
        found.late_copies[point] = expected_runs(chance)

    @property
    def bank_bytes(self) -> int:
        """What the banks of all devices take."""
        return sum(bank.n_places * bank.expert_bytes for bank in set(self.banks.values()))

    def missing(self, layer: int, n_tokens: int, admitted: float = 1.0) -> Floats:
        """(experts,): how likely a ubatch uses each, and the bank does not have it, which takes in `admitted` of what
        it misses."""
        assert self.use is not None
        at = self.layout.moe_layers.index(layer)
        used = self.use.chance_of_use(n_tokens)[at]
        bank = self.banks.get(layer)
        if not self.fills_bank or bank is None:
            return np.asarray(used)
        is_token = n_tokens == 1
        of_bank = self.use.in_bank(bank.n_places, admitted, in_turn=is_token, layers=bank.layers)
        held = of_bank[bank.layers.index(at)]
        return np.asarray(used * (1 - held) * (1 - self.use.repeat * is_token))


def decide(
    arm: str,
    options: PolicyOptions,
    layout: Layout,
    use: ExpectedUse | None,
    compute_ns: Callable[[int, int], float],
    link_gb_s: float,
    *,
    fills_bank: bool = True,
    known: KnownCopies | None = None,
) -> Decider:
    """The arm's policy, ready to be asked. `compute_ns(n_tokens, n_past)`: what a layer computes for a ubatch.
    `known`: what deciders of the same plan, which differ in placement or slots alone, decided already.

    Raises HprofError where its cache is too small to serve a token, as a run would.
    """
    policy = make_policy(arm, options)
    inner = getattr(policy, "inner", policy)
    learner = inner.hot if isinstance(inner, Auto) else inner
    if isinstance(learner, Hot) and use is not None:
        learner.popularity = _Expected(layout, use)  # type: ignore[assignment]
        learner.times = _Times(compute_ns, link_gb_s)  # type: ignore[assignment]
    # what auto chooses turns on the placement and on what it was told
    shared = None if isinstance(inner, Auto) else known
    known = {} if shared is None else shared
    return Decider(layout, policy, use, fills_bank, known=known, banks=_banks(layout, policy.cache_bytes))


def _banks(layout: Layout, cache_bytes: int) -> dict[int, Bank]:
    """By layer, the bank that serves it."""
    if not cache_bytes:
        return {}
    of_device = defaultdict(list)
    for unit in layout.units.values():
        of_device[layout.device_of[unit.layer]].append(unit)
    moe = {layer: layout.model.shape.layers[layer].moe for layer in layout.moe_layers}
    n_used = {layer: ffn.n_used for layer, ffn in moe.items() if ffn is not None}
    found = {}
    for units in of_device.values():
        for group, n_places in shared_out(units, cache_bytes // layout.n_devices, n_used):
            places = tuple(layout.moe_layers.index(unit.layer) for unit in group)
            bank = Bank(n_places, group[0].expert_bytes, places)
            found.update({unit.layer: bank for unit in group})
    return found


@dataclass(frozen=True, slots=True)
class _Expected:
    """Stands in for `hot.Popularity` after many passes."""

    layout: Layout
    use: ExpectedUse

    def chance_of_use(self, layer: int, n_tokens: int) -> Floats:
        return np.asarray(self.use.chance_of_use(n_tokens)[self.layout.moe_layers.index(layer)])

    def expected_share(self, layer: int, n_tokens: int) -> float:
        return float(self.chance_of_use(layer, n_tokens).mean())


@dataclass(frozen=True, slots=True)
class _Times:
    """Stands in for `hot.LayerTimes` after many passes."""

    layer_compute_ns: Callable[[int, int], float]
    bytes_per_ns: float

    def compute_ns(self, ubatch: Ubatch) -> float:
        return self.layer_compute_ns(ubatch.n_tokens, ubatch.n_past)
