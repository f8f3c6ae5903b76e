"""Which experts a ubatch is expected to use: D(n), the runs that copies merge into, and what an LRU bank hits.

Tokens choose `n_used` experts without replacement, weighted by popularity. An expert's chance to be among one token's
is `1 - exp(-w t)` with t such that the chances add up to `n_used` (Rosen's approximation of successive sampling), and
n tokens use it with `1 - (1 - chance)^n`. A bank's hits follow from how many tokens fill it (Che's approximation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from executor.arrays import Floats, Int64
from executor.routing.routers import RandomRouting, Routing, TraceRouting
from profiler.predicting.least_squares import least_misses

if TYPE_CHECKING:
    from profiler.planning.plan import RunPlan

_HALVINGS: Final = 60
_LEAST_ADMITTED: Final = 0.01  # a bank that nothing is uploaded into would keep what it began with
_USUAL_N, _USUAL_SHARE = np.array([8.0, 512.0, 4096.0]), np.array([0.25, 0.8, 0.85])
_TRACED: Final = 4096  # positions of a recorded trace that its popularity is counted over


@dataclass(frozen=True)
class ExpectedUse:
    """`chances` (layers, experts): each expert's chance to be among one token's; `repeat`: the share of a token's
    experts that it keeps from the token before it."""

    chances: Floats
    n_used: int
    repeat: float = 0.0
    _known: dict[int, Floats] = field(default_factory=dict, repr=False, compare=False)
    _in_banks: dict[tuple[int, float, bool, tuple[int, ...] | None], Floats] = field(
        default_factory=dict, repr=False, compare=False
    )
    _shares: dict[int, tuple[Floats, Floats]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def n_experts(self) -> int:
        return int(self.chances.shape[1])

    def chance_of_use(self, n_tokens: int) -> Floats:
        """(layers, experts): the chance that a ubatch of `n_tokens` uses an expert."""
        if n_tokens not in self._known:
            fresh = 1 + (n_tokens - 1) * (1 - self.repeat)
            self._known[n_tokens] = -np.expm1(fresh * np.log1p(-np.minimum(self.chances, 1 - 1e-12)))
        return self._known[n_tokens]

    def distinct(self, n_tokens: int) -> Floats:
        """(layers,): how many experts a ubatch of `n_tokens` is expected to use."""
        return np.asarray(self.chance_of_use(n_tokens).sum(axis=1))

    def share_of_least(self, n_tokens: int, part: Floats) -> Floats:
        """(parts,): the share of a ubatch's choices that the least popular `part` (parts,) of its experts in use have,
        all layers' mean."""
        if n_tokens not in self._shares:
            chances = np.sort(self.chances, axis=1).mean(axis=0)
            in_use = np.cumsum(-np.expm1(n_tokens * np.log1p(-np.minimum(chances, 1 - 1e-12))))
            choices = np.cumsum(chances)
            self._shares[n_tokens] = np.append(0.0, in_use / in_use[-1]), np.append(0.0, choices / choices[-1])
        return np.asarray(np.interp(part, *self._shares[n_tokens]))

    def hit_rate(self, bank_experts: int, admitted: float = 1.0) -> float:
        """The share of a decoded token's experts that a bank of so many experts, under LRU, is expected to have."""
        held = self.in_bank(bank_experts, admitted, in_turn=True)
        return self.repeat + (1 - self.repeat) * float((self.chances * held).sum() / self.chances.sum())

    def in_bank(
        self, bank_experts: int, admitted: float = 1.0, *, in_turn: bool, layers: tuple[int, ...] | None = None
    ) -> Floats:
        """(layers, experts): how likely each is in a bank of so many experts, under LRU, which decoded tokens fill.
        `layers`: the places of those that share it, and that are asked about; None: all.

        The bank holds what the last tokens used. `in_turn`: when the next token asks for it: layers come round in
        turn, so whole tokens count, and a bank that is smaller than a token's own demand has nothing left then.
        `admitted` is the share of the misses that are uploaded: the fewer, the longer popular experts stay (q-LRU,
        Martina, Garetto and Leonardi 2014).
        """
        key = bank_experts, round(max(admitted, _LEAST_ADMITTED), 2), in_turn, layers
        if key not in self._in_banks:
            self._in_banks[key] = self._held_by(*key)
        return self._in_banks[key]

    def _held_by(self, bank_experts: int, admitted: float, in_turn: bool, layers: tuple[int, ...] | None) -> Floats:
        chances = self.chances if layers is None else self.chances[list(layers)]
        if bank_experts >= np.count_nonzero(chances):
            return np.asarray((chances > 0) * 1.0)
        low, high = 0.0, 1.0
        while _held(chances, high, admitted).sum() < bank_experts:
            low, high = high, 2 * high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            is_low = _held(chances, middle, admitted).sum() < bank_experts
            low, high = (middle, high) if is_low else (low, middle)
        return _held(chances, math.floor(high) if in_turn else high, admitted)


def expected_runs(chance: Floats) -> Floats:
    """(…,): how many runs of neighbours the used experts are expected to merge into; `chance` is (…, experts)."""
    before = np.concatenate([np.zeros_like(chance[..., :1]), chance[..., :-1]], axis=-1)
    return np.asarray((chance * (1 - before)).sum(axis=-1))


def runs_of_part(n_experts: Floats, n_runs: Floats, share: Floats) -> Floats:
    """How many runs are left of so many experts where a share of them stays, whichever they are: a pair of neighbours
    is one piece where both do."""
    return np.asarray(share * n_experts - (n_experts - n_runs) * share**2)


def expert_use(plan: RunPlan, layers: Sequence[int]) -> ExpectedUse | None:
    """What the plan's routing leads to; None for a model without experts.

    A model whose own router chooses is taken to behave as published measurements do, until a capture says more.
    """
    if not layers:
        return None
    moe = plan.model.shape.layers[layers[0]].moe
    assert moe is not None
    if plan.session.routing is not None:
        return use_of_routing(plan.session.routing, layers, moe.n_used)
    nothing = np.zeros(0)
    return use_of_observed(nothing, nothing, len(layers), moe.n_experts, moe.n_used)


def use_of_routing(routing: Routing, layers: Sequence[int], n_used: int) -> ExpectedUse:
    """What a routing model, or a recorded trace, leads to in the given layers."""
    if isinstance(routing, RandomRouting):
        weights = np.stack([routing.popularity(layer) for layer in layers])
        return ExpectedUse(inclusion_chances(weights, n_used), n_used, routing.repeat)
    assert isinstance(routing, TraceRouting)
    ids = [routing.choices[layer][:_TRACED] for layer in layers]
    n_experts = 1 + max(int(routing.choices[layer].max()) for layer in layers)
    counts = np.stack([np.bincount(of_layer.ravel(), minlength=n_experts) / len(of_layer) for of_layer in ids])
    repeat = float(np.mean([_repeated(of_layer) for of_layer in ids])) if len(ids[0]) > 1 else 0.0
    by_chance = float((counts**2).sum() / counts.sum())
    return ExpectedUse(counts, n_used, max(0.0, (repeat - by_chance) / max(1e-9, 1 - by_chance)))


def use_of_observed(n_tokens: Floats, distinct: Floats, n_layers: int, n_experts: int, n_used: int) -> ExpectedUse:
    """Log-normal popularity with a dead share whose D(n) is nearest to what was observed, point by point.

    `distinct` (points,) are mean counts of experts in use by ubatches of `n_tokens` (points,). One point alone leaves
    the dead share at 0. Which experts are popular is drawn: what was observed does not say it. Single tokens use
    `n_used` whatever the popularity, and tell nothing: without any other point it is as published measurements have it.
    """
    tells = n_tokens > 1
    if not tells.any():
        tells, n_tokens, distinct = np.ones(len(_USUAL_N), np.bool_), _USUAL_N, _USUAL_SHARE * n_experts
    n_tokens, distinct = n_tokens[tells], distinct[tells]
    ranks = _ranks(n_experts)

    def chances(sigma: float, dead: float) -> Floats:
        weights = np.exp(sigma * ranks)
        return inclusion_chances((weights / weights.sum())[None], n_used / (1 - dead))

    def misses(parameters: Floats) -> Floats:
        sigma, dead = parameters if len(parameters) > 1 else (parameters[0], 0.0)
        use = ExpectedUse(chances(sigma, dead), n_used)
        return np.asarray([(1 - dead) * use.distinct(int(n))[0] for n in n_tokens]) / distinct - 1

    start, most = ([1.0, 0.05], [6.0, 1 - n_used / n_experts - 1e-6])
    n_free = min(2, len(n_tokens))
    found, _ = least_misses(misses, start[:n_free], bounds=([0.0] * n_free, most[:n_free]))
    sigma, dead = (*found, 0.0)[:2]
    rng = np.random.default_rng(0)
    of_layers = np.tile(chances(sigma, dead)[0], (n_layers, 1)) * (rng.random((n_layers, n_experts)) >= dead)
    return ExpectedUse(rng.permuted(of_layers, axis=1), n_used)


def use_of_sigma(sigma: float, n_layers: int, n_experts: int, n_used: int) -> ExpectedUse:
    """Log-normal popularity of that width, without a dead share, differently drawn in each layer."""
    weights = np.exp(sigma * _ranks(n_experts))
    of_layers = np.tile(inclusion_chances((weights / weights.sum())[None], n_used)[0], (n_layers, 1))
    return ExpectedUse(np.random.default_rng(0).permuted(of_layers, axis=1), n_used)


def _ranks(n_experts: int) -> Floats:
    """(experts,): where so many draws of a normal distribution lie, evenly."""
    from scipy.special import ndtri  # takes long to import, and a routing model does not ask for it

    return np.asarray(ndtri((np.arange(n_experts) + 0.5) / n_experts))


def inclusion_chances(weights: Floats, n_used: float) -> Floats:
    """(layers, experts): chances that add up to `n_used` in each layer; `weights` (layers, experts) add up to 1."""
    alive = (weights > 0).sum(axis=1)
    low, high = np.zeros(len(weights)), np.full(len(weights), 1.0)
    reaches = np.minimum(n_used, alive - 1e-9)
    while (short := _used(weights, high) < reaches).any() and high.max() < 1e18:
        high = np.where(short, 2 * high, high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_low = _used(weights, middle) < reaches
        low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
    return np.asarray(-np.expm1(-weights * high[:, None]))


def _used(weights: Floats, time: Floats) -> Floats:
    """(layers,): experts whose first arrival, at rates of `weights`, lies before `time`."""
    return np.asarray(-np.expm1(-weights * time[:, None]).sum(axis=1))


def _held(chances: Floats, time: float, admitted: float) -> Floats:
    """(layers, experts): how likely each is in a bank whose characteristic time is so many tokens."""
    used = -np.expm1(time * np.log1p(-np.minimum(chances, 1 - 1e-12)))
    return np.asarray(admitted * used / (1 - used + admitted * used))


def _repeated(ids: Int64) -> float:
    """The share of a token's experts that the token before it used too."""
    return float((ids[1:, :, None] == ids[:-1, None, :]).any(axis=2).mean())
