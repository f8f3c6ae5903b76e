"""Which experts each token of a synthetic model uses: seeded, by position, and so the same for every arm.

Random weights route almost uniformly and trained ones do not, so the distinct share D(n), on which every
comparison of copy policies rests, comes from a model of routing or from a recorded trace. A token's experts are
the top of log(weight) + Gumbel noise. Log-normal weights with a dead share follow measured counts best: two
fitted numbers give published coverage of two models to half a percent, where Zipf and Dirichlet are off by 1 to
5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from executor.arrays import Flags, Floats, Int64

Ids = Int64
# With a chance to repeat, each so many positions begin afresh: position p depends on fewer than this many before it.
_RESTART: Final = 64
_DRAWS_A_COUNT: Final = 8  # Philox gives eight 32-bit numbers for each value of its counter
_TINY: Final = np.float32(1e-30)


@dataclass(frozen=True, slots=True)
class PopularityFamily:
    """`draw(rng, n_experts, parameters)` gives positive weights; `defaults` lists the parameters."""

    defaults: Mapping[str, float]
    draw: Callable[[np.random.Generator, int, Mapping[str, float]], Floats]


def _lognormal(rng: np.random.Generator, n: int, p: Mapping[str, float]) -> Floats:
    return np.exp(p["sigma"] * rng.standard_normal(n))


def _zipf(rng: np.random.Generator, n: int, p: Mapping[str, float]) -> Floats:
    return rng.permutation(np.arange(1, n + 1) ** -p["s"])


def _dirichlet(rng: np.random.Generator, n: int, p: Mapping[str, float]) -> Floats:
    return np.maximum(rng.standard_gamma(p["alpha"], n), np.finfo(np.float64).tiny)


POPULARITY_FAMILIES: Final[dict[str, PopularityFamily]] = {
    "lognormal": PopularityFamily({"sigma": 1.401, "dead": 0.154}, _lognormal),
    "uniform": PopularityFamily({"dead": 0.0}, lambda _rng, n, _p: np.ones(n)),
    "zipf": PopularityFamily({"s": 1.068, "dead": 0.160}, _zipf),
    "dirichlet": PopularityFamily({"alpha": 0.341, "dead": 0.0}, _dirichlet),
}


def draw_popularity(
    family: str, parameters: Mapping[str, float], n_experts: int, n_used: int, rng: np.random.Generator
) -> Floats:
    """Weights (n_experts,) that sum to 1; a share of about `dead` is 0, but n_used experts are always left."""
    weights = POPULARITY_FAMILIES[family].draw(rng, n_experts, parameters)
    dead = rng.random(n_experts) < parameters["dead"]
    if n_experts - dead.sum() < n_used:
        dead[np.argsort(-weights)[:n_used]] = False
    weights[dead] = 0.0
    return np.asarray(weights / weights.sum())


class Routing(Protocol):
    """Chooses experts for a layer's tokens."""

    @property
    def label(self) -> str:
        """What this routing is, with its numbers, for manifest and report."""

    def ids(self, layer: int, position: int, n_tokens: int) -> Ids:
        """The experts (n_tokens, n_used) of the tokens at `position` and after it."""


@dataclass(frozen=True)
class RandomRouting:
    """Independent tokens under a popularity drawn for each layer; `repeat` keeps some experts from token to token."""

    family: str
    parameters: Mapping[str, float]
    n_experts: int
    n_used: int
    seed: int
    repeat: float = 0.0
    _weights: dict[int, Floats] = field(default_factory=dict, repr=False)
    _drawn: dict[int, tuple[int, NDArray[np.int32]]] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str:
        numbers = {**self.parameters, "repeat": self.repeat, "seed": self.seed}
        return f"{self.family}:{','.join(f'{key}={value:g}' for key, value in numbers.items())}"

    def popularity(self, layer: int) -> Floats:
        """Weights of the draw; close to, but not exactly, the shares of the choices (a token's choices differ)."""
        if layer not in self._weights:
            rng = np.random.default_rng((self.seed, layer))
            self._weights[layer] = draw_popularity(self.family, self.parameters, self.n_experts, self.n_used, rng)
        return self._weights[layer]

    def ids(self, layer: int, position: int, n_tokens: int) -> Ids:
        """As the protocol has it. A layer's last draw is kept: all arms of a repetition ask for the same one."""
        at, drawn = self._drawn.get(layer, (-1, np.empty(0, np.int32)))
        if at != position or len(drawn) < n_tokens:
            drawn = self._draw(layer, position, n_tokens).astype(np.int32)
            self._drawn[layer] = position, drawn
        return drawn[:n_tokens].astype(np.int64)

    def _draw(self, layer: int, position: int, n_tokens: int) -> Ids:
        if self.repeat == 0.0:
            return self._fresh(layer, position, n_tokens, self.n_used)
        start = position - position % _RESTART
        blocks = -(-(position + n_tokens - start) // _RESTART)
        return self._sticky(layer, start, blocks)[position - start :][:n_tokens]

    def _fresh(self, layer: int, position: int, n_tokens: int, count: int) -> Ids:
        """The first `count` experts of each token, the likeliest first: the smallest of Exp(1) / weight."""
        noise = -np.log1p(-self._uniform(layer, 0, position, n_tokens, self.n_experts)) + _TINY
        with np.errstate(divide="ignore", over="ignore"):
            arrival = noise * (1.0 / self.popularity(layer)).astype(np.float32)
        first: Ids = torch.topk(torch.from_numpy(arrival), count, dim=1, largest=False).indices.numpy()
        return first

    def _sticky(self, layer: int, start: int, blocks: int) -> Ids:
        """All positions of whole restart blocks: step through a block, all blocks at once."""
        k, n = self.n_used, blocks * _RESTART
        candidates = min(2 * k, self.n_experts)
        fresh = self._fresh(layer, start, n, candidates).reshape(blocks, _RESTART, candidates)
        keep = (self._uniform(layer, 1, start, n, k) < self.repeat).reshape(blocks, _RESTART, k)
        out = np.empty((blocks, _RESTART, k), np.int64)
        out[:, 0] = fresh[:, 0, :k]
        for step in range(1, _RESTART):
            out[:, step] = _keep_some(out[:, step - 1], keep[:, step], fresh[:, step])
        return out.reshape(n, k)

    def _uniform(self, layer: int, purpose: int, position: int, n_tokens: int, width: int) -> NDArray[np.float32]:
        """Numbers in [0, 1) that depend on seed, layer, purpose and position alone, (n_tokens, width)."""
        counts = -(-width // _DRAWS_A_COUNT)
        key = np.random.SeedSequence((self.seed, layer, purpose)).generate_state(2, np.uint64)
        bits = np.random.Philox(key=key, counter=[position * counts, 0, 0, 0])
        draws = np.random.Generator(bits).random((n_tokens, counts * _DRAWS_A_COUNT), dtype=np.float32)
        return draws[:, :width]


@dataclass(frozen=True)
class TraceRouting:
    """Choices recorded from a real model; positions after the trace's end begin again at its start."""

    path: str
    choices: Mapping[int, Ids]  # layer -> (positions, n_used)

    @property
    def label(self) -> str:
        return f"trace:{self.path}"

    def ids(self, layer: int, position: int, n_tokens: int) -> Ids:
        recorded = self.choices[layer]
        return recorded[np.arange(position, position + n_tokens) % len(recorded)]


def _keep_some(before: Ids, keep: Flags, fresh: Ids) -> Ids:
    """Each row's kept experts of `before`, filled up with the first of `fresh` that are not among them."""
    kept = np.where(keep, before, -1)
    is_new = (fresh[:, :, None] != kept[:, None, :]).all(axis=2)
    pool = np.concatenate([kept, fresh], axis=1)
    usable = np.concatenate([keep, is_new], axis=1)
    chosen = np.argsort(~usable, axis=1, kind="stable")[:, : before.shape[1]]
    return np.take_along_axis(pool, chosen, axis=1)
