"""What an arm's own policy decides, asked point by point: where each step of each layer computes, and what is copied.

The policies are the executor's; those that learn from passes are told instead what they would learn: `hot` each
expert's chance of use and how long a layer computes, `auto` how long a ubatch takes under each arm that it chooses
from, `both` what either side takes (`profiler.predicting.divided`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final

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


@dataclass(frozen=True, slots=True)
class StepCopies:
    """One step of some layers at every point: arrays are (layers, points).

    `ahead_*` goes before the step is reached, `late_*` when it is; `late_ahead` says that what is late goes on the
    copy stream. `waits`: the host must know the router's choice. `on_host`: the CPU computes, and nothing is copied.
    `inside_bytes` go from the bank into the slot. `divided`: CPU and device share the experts that are missing; what
    is copied follows from how (`profiler.predicting.divided`).
    """

    ahead_bytes: Floats
    ahead_copies: Floats
    late_bytes: Floats
    late_copies: Floats
    inside_bytes: Floats
    late_ahead: Flags
    waits: Flags
    on_host: Flags
    divided: Flags

    @classmethod
    def of(cls, decided: Floats) -> StepCopies:
        """`decided` (fields, layers, points) as `Decider.copies` has it."""
        is_flag = decided[5:] != 0
        return cls(*decided[:5], *is_flag)

    @property
    def n_bytes(self) -> Floats:
        return self.ahead_bytes + self.late_bytes


_FIELDS: Final = {one.name: at for at, one in enumerate(fields(StepCopies))}


@dataclass(frozen=True, slots=True)
class Bank:
    """An expert cache on one device. `layers`: the places, among the layers with experts, of those that share it."""

    n_places: int
    expert_bytes: int
    layers: tuple[int, ...]


KnownCopies = dict[tuple[object, ...], dict[tuple[int, int], Floats]]
"""What was decided already, for the same plan under any placement: by arm, step and points, then by layer and bytes;
(fields of StepCopies, points)."""


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

    def streams(self, layer: int, step: str) -> bool:
        """Whether a step's weights are streamed, or some of them."""
        return (layer, step) in self.layout.units and not self.policy.traits.is_resident

    def alike(self, layers: Sequence[int], step: str) -> Iterator[list[int]]:
        """Layers by what of a step's weights is streamed, and by the bank that serves them."""
        found: dict[tuple[object, int], list[int]] = defaultdict(list)
        for layer in layers:
            unit, bank = self.layout.units.get((layer, step)), self.banks.get(layer)
            found[() if unit is None else (unit.label, unit.n_bytes), id(bank)].append(layer)
        yield from found.values()

    def copies(self, layers: Sequence[int], step: str, asked: Floats) -> Floats:
        """(fields of StepCopies, layers, asked): what the policy does for a step of layers that are `alike`, in the
        ubatches that `ask` gave."""
        # the number of slots decides when copies go, and not which
        options = replace(self.policy.options, slots=0)
        key = (self.policy.name, options, step, self.banks.get(layers[0]), asked.tobytes())
        known = self.known.setdefault(key, {})
        units = [self.layout.units[layer, step] for layer in layers]
        new = [unit for unit in units if (unit.layer, unit.n_bytes) not in known]
        if new:
            found = self._asked(new, asked)
            known |= {(unit.layer, unit.n_bytes): found[:, row] for row, unit in enumerate(new)}
        return np.stack([known[unit.layer, unit.n_bytes] for unit in units], axis=1)

    def _asked(self, units: Sequence[TransferUnit], asked: Floats) -> Floats:
        found = np.zeros((len(_FIELDS), len(units), asked.shape[1]))
        ubatches = [Ubatch(point, "prefill", int(n), int(past), n_outputs=0) for point, (n, past) in enumerate(asked.T)]
        plans = [self._plans(unit, ubatches) for unit in units]
        for point, ubatch in enumerate(ubatches):
            of_kind: dict[tuple[object, ...], list[int]] = defaultdict(list)
            for row, of_unit in enumerate(plans):
                plan = of_unit[point]
                of_kind[_look(plan)].append(row)
            for rows in of_kind.values():
                alike = [plan for row in rows if (plan := plans[row][point]) is not None]
                if alike:
                    found[:, rows, point] = self._decided([units[row] for row in rows], alike, ubatch.n_tokens)
                else:
                    found[_FIELDS["on_host"], rows, point] = True
        return found

    def _plans(self, unit: TransferUnit, ubatches: Sequence[Ubatch]) -> list[Plan | None]:
        """The plan for each ubatch; None: the CPU computes."""
        self.policy.begin_pass(warmup_number=self.warmup)  # ubatches are numbered anew here
        may_be_on_host = unit.what in ("ffn", "experts")
        return [
            None
            if may_be_on_host and self.policy.regime(ubatch.n_tokens, unit) == "cpu"
            else self.policy.plan(Item(0, ubatch, unit))
            for ubatch in ubatches
        ]

    def _decided(self, units: Sequence[TransferUnit], plans: Sequence[Plan], n_tokens: int) -> Floats:
        """(fields of StepCopies, units): plans of units that are alike, and alike themselves but for what is hot."""
        unit, plan = units[0], plans[0]
        found = dict.fromkeys(_FIELDS, np.zeros(len(units)))
        found["waits"] = found["waits"] + (plan.needs_routing and unit.n_experts > 0)
        found["late_ahead"] = found["late_ahead"] + (plan.when == "ahead")
        if plan.what == "whole":
            way = "ahead" if plan.when == "ahead" else "late"
            found[f"{way}_bytes"], found[f"{way}_copies"] = (np.full(len(units), n) for n in (unit.n_bytes, 1.0))
        elif plan.divided:
            found["divided"] = np.ones(len(units))
        else:
            found |= self._selective(units, plans, n_tokens)
        return np.stack(list(found.values()))

    def _selective(
        self, units: Sequence[TransferUnit], plans: Sequence[Plan], n_tokens: int
    ) -> Iterator[tuple[str, Floats]]:
        """Fields of StepCopies, (units,), of plans that turn on the router's choice."""
        assert self.use is not None
        unit, plan, layers = units[0], plans[0], [unit.layer for unit in units]
        used = self.use.chance_of_use(n_tokens)[[self.layout.moe_layers.index(layer) for layer in layers]]
        chance = used if plan.when == "ahead" else self.missing(layers, n_tokens)
        bank = self.banks.get(unit.layer)
        in_bank = plan.what == "bank" and bank is not None and used.sum(axis=1) <= bank.n_places
        all_late = chance.sum(axis=1)
        yield "inside_bytes", np.where(in_bank, 0.0, (used - chance).sum(axis=1) * unit.expert_bytes)
        hot = [one.hot for one in plans if one.hot is not None]
        if hot:
            is_hot = np.stack(hot)
            yield "ahead_bytes", is_hot.sum(axis=1) * unit.expert_bytes
            yield "ahead_copies", expected_runs(is_hot.astype(np.float64))
            chance = np.where(is_hot, 0.0, chance)
        yield "late_bytes", np.where(in_bank, all_late, chance.sum(axis=1)) * unit.expert_bytes
        yield "late_copies", np.where(in_bank, all_late, expected_runs(chance))

    @property
    def bank_bytes(self) -> int:
        """What the banks of all devices take."""
        return sum(bank.n_places * bank.expert_bytes for bank in set(self.banks.values()))

    def missing(self, layers: Sequence[int], n_tokens: int, admitted: float = 1.0) -> Floats:
        """(layers, experts): how likely a ubatch uses each, and the bank does not have it, which takes in `admitted` of
        what it misses. One bank serves all of the layers."""
        assert self.use is not None
        at = [self.layout.moe_layers.index(layer) for layer in layers]
        used = self.use.chance_of_use(n_tokens)[at]
        bank = self.banks.get(layers[0])
        if not self.fills_bank or bank is None:
            return np.asarray(used)
        is_token = n_tokens == 1
        of_bank = self.use.in_bank(bank.n_places, admitted, in_turn=is_token, layers=bank.layers)
        held = of_bank[[bank.layers.index(place) for place in at]]
        return np.asarray(used * (1 - held) * (1 - self.use.repeat * is_token))


def _look(plan: Plan | None) -> tuple[object, ...]:
    """What plans have in common that are alike but for what is hot."""
    return (None,) if plan is None else (plan.when, plan.what, plan.divided, plan.hot is None)


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

    Raises CacheTooSmallError where its cache is too small to serve a token, as a run would.
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
