"""Which experts a ubatch is expected to use: D(n), the runs that copies merge into, and what an LRU bank hits.

Tokens choose `n_used` experts without replacement, weighted by popularity. An expert's chance to be among one token's
is `1 - exp(-w t)` with t such that the chances add up to `n_used` (Rosen's approximation of successive sampling), and
n tokens use it with `1 - (1 - chance)^n`. A bank's hits follow from how many tokens fill it (Che's approximation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import norm

from executor.routing.routers import RandomRouting, Routing, TraceRouting

Floats = NDArray[np.float64]
_HALVINGS: Final = 60
_TRACED: Final = 4096  # positions of a recorded trace that its popularity is counted over


@dataclass(frozen=True)
class ExpectedUse:
    """`chances` (layers, experts): each expert's chance to be among one token's; `repeat`: the share of a token's
    experts that it keeps from the token before it."""

    chances: Floats
    n_used: int
    repeat: float = 0.0
    _known: dict[int, Floats] = field(default_factory=dict, repr=False, compare=False)
    _hit_rates: dict[int, float] = field(default_factory=dict, repr=False, compare=False)

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

    def hit_rate(self, bank_experts: int) -> float:
        """The share of a decoded token's experts that a bank of so many experts, under LRU, is expected to have.

        The bank holds what the last so many whole tokens used: layers come round in turn, so one that is smaller than
        a token's own demand has nothing left when a layer's turn comes again.
        """
        if bank_experts not in self._hit_rates:
            self._hit_rates[bank_experts] = self._hits(bank_experts)
        return self._hit_rates[bank_experts]

    def _hits(self, bank_experts: int) -> float:
        if bank_experts >= np.count_nonzero(self.chances):
            return 1.0
        low, high = 0.0, 1.0
        held = _held(self.chances, high)
        while held < bank_experts:
            low, high = high, 2 * high
            held = _held(self.chances, high)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if _held(self.chances, middle) < bank_experts else (low, middle)
        not_since = (1 - self.chances) ** math.floor(high)
        hits = float((self.chances * (1 - not_since)).sum() / self.chances.sum())
        return self.repeat + (1 - self.repeat) * hits


def expected_runs(chance: Floats) -> Floats:
    """(…,): how many runs of neighbours the used experts are expected to merge into; `chance` is (…, experts)."""
    before = np.concatenate([np.zeros_like(chance[..., :1]), chance[..., :-1]], axis=-1)
    return np.asarray((chance * (1 - before)).sum(axis=-1))


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
    the dead share at 0. Which experts are popular is drawn: what was observed does not say it.
    """
    ranks = norm.ppf((np.arange(n_experts) + 0.5) / n_experts)

    def chances(sigma: float, dead: float) -> Floats:
        weights = np.exp(sigma * ranks)
        return inclusion_chances((weights / weights.sum())[None], n_used / (1 - dead))

    def misses(parameters: Floats) -> Floats:
        sigma, dead = parameters if len(parameters) > 1 else (parameters[0], 0.0)
        use = ExpectedUse(chances(sigma, dead), n_used)
        return np.asarray([(1 - dead) * use.distinct(int(n))[0] for n in n_tokens]) / distinct - 1

    start, most = ([1.0, 0.05], [6.0, 1 - n_used / n_experts - 1e-6])
    n_free = min(2, len(n_tokens))
    found = least_squares(misses, start[:n_free], bounds=([0.0] * n_free, most[:n_free]))
    sigma, dead = (*found.x, 0.0)[:2]
    rng = np.random.default_rng(0)
    of_layers = np.tile(chances(sigma, dead)[0], (n_layers, 1)) * (rng.random((n_layers, n_experts)) >= dead)
    return ExpectedUse(rng.permuted(of_layers, axis=1), n_used)


def use_of_sigma(sigma: float, n_layers: int, n_experts: int, n_used: int) -> ExpectedUse:
    """Log-normal popularity of that width, without a dead share, differently drawn in each layer."""
    weights = np.exp(sigma * norm.ppf((np.arange(n_experts) + 0.5) / n_experts))
    of_layers = np.tile(inclusion_chances((weights / weights.sum())[None], n_used)[0], (n_layers, 1))
    return ExpectedUse(np.random.default_rng(0).permuted(of_layers, axis=1), n_used)


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


def _held(chances: Floats, time: float) -> float:
    """Experts that were used within `time` tokens: what a bank with that characteristic time holds."""
    return float((1 - (1 - np.minimum(chances, 1 - 1e-12)) ** time).sum())


def _repeated(ids: NDArray[np.int64]) -> float:
    """The share of a token's experts that the token before it used too."""
    return float((ids[1:, :, None] == ids[:-1, None, :]).any(axis=2).mean())
