"""The closed form that synthetic routing is held to: how many experts n tokens touch.

A token's n_used experts are the top of log(weight) + Gumbel noise. So expert i is among them with a chance of about
1 - exp(-lambda w_i), with lambda such that these add up to n_used, and n tokens touch it with 1 - exp(-n lambda w_i).
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq

from executor.arrays import Floats
from executor.routing.routers import RandomRouting, Routing


def inclusion(weights: Floats, n_used: int) -> Floats:
    """The chance of each expert to be among one token's n_used, (n_experts,)."""
    alive = np.count_nonzero(weights)
    if alive <= n_used:
        return (weights > 0).astype(np.float64)

    def excess(log_rate: float) -> float:
        return float(-np.expm1(-np.exp(log_rate) * weights).sum() - n_used)

    smallest = weights[weights > 0].min()
    rate = np.exp(brentq(excess, np.log(n_used), np.log(50.0 / smallest)))
    return np.asarray(-np.expm1(-rate * weights))


def expected_distinct(chances: Floats, n_tokens: int, repeat: float = 0.0) -> float:
    """Experts that n tokens touch, from each one's chance in a token.

    With a chance `repeat` to keep an expert of the token before, n tokens count as 1 + (n - 1)(1 - repeat).
    """
    independent = 1.0 + (n_tokens - 1) * (1.0 - repeat)
    return float((1.0 - (1.0 - chances) ** independent).sum())


def predicted_distinct(routing: Routing, layer: int, n_tokens: int) -> float:
    """How many experts of the layer n tokens of a random routing touch."""
    assert isinstance(routing, RandomRouting)
    return expected_distinct(inclusion(routing.popularity(layer), routing.n_used), n_tokens, routing.repeat)
