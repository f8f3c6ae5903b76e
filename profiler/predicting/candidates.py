"""A setting that advice may give, with what it would give, and what of two settings is better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from executor.placement.place import Placement
from executor.policies.base import PolicyOptions
from profiler.predicting.predictor import Prediction

Objective = Literal["ttft", "prefill", "decode", "mix"]
OBJECTIVES: Final[tuple[Objective, ...]] = ("ttft", "prefill", "decode", "mix")
USUAL_UBATCH: Final = 512
"""hprof's default, and llama.cpp's."""
_SCATTER: Final = 0.03  # what llama-bench's rows scatter by, relative
# What smaller ubatches cost an engine is told worst, as rows of usual ones do not show it (docs/predicting.md, where
# llama.cpp's own fit is): two of 256, all weights resident, took more than one of 512 that copied; less was predicted.
_SMALLER: Final = 0.1
_NEAR: Final = 0.01  # of each figure
_ALIKE: Final = 0.002  # costs that differ by less are no reason to choose: then the whole time decides


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting, with what it gives in each cell. `override`: its placement as `-ot` takes it; None: all resident."""

    arm: str
    n_ubatch: int
    policy: PolicyOptions
    placement: Placement
    override: str | None
    predictions: tuple[Prediction, ...]
    reserve_bytes: int = 0
    """What a device holds besides: KV cache or other states, and activations. It is inside the budget too."""

    @property
    def slots(self) -> int:
        return self.policy.slots

    @property
    def cache_mib(self) -> int:
        return self.policy.cache_bytes >> 20

    @property
    def vram_bytes(self) -> int:
        """Resident weights, slots and bank."""
        return max(sum(one.vram.values()) for one in self.predictions)

    @property
    def ttft_ns(self) -> float:
        """Of the prompts, all together."""
        return sum(one.ttft_ns or 0.0 for one in self.predictions)

    @property
    def decode_ns(self) -> float:
        return sum(one.decode_ns or 0.0 for one in self.predictions)

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Of the longest prompt."""
        longest = max(self.predictions, key=lambda one: one.cell.n_prompt)
        return longest.cell.n_prompt / longest.prefill_ns * 1e9 if longest.prefill_ns else None

    @property
    def decode_tokens_per_s(self) -> float | None:
        n = sum(one.cell.n_decoded for one in self.predictions)
        return n / self.decode_ns * 1e9 if n and self.decode_ns else None

    @property
    def in_range(self) -> bool:
        return all(one.in_range for one in self.predictions)

    def cost(self, objective: Objective) -> float:
        """What is to be small: ns, or for `prefill` ns a token."""
        if objective == "prefill":
            return 1e9 / (self.prefill_tokens_per_s or 1e-9)
        parts = {"ttft": self.ttft_ns, "decode": self.decode_ns, "mix": self.ttft_ns + self.decode_ns}
        return parts[objective]

    def bound_by(self) -> str:
        """What most of the prompts' time is spent on, in words."""
        sums = {"copies": 0.0, "the CPU": 0.0, "the GPU": 0.0}
        for one in self.predictions:
            for name, ns in one.busy_prefill.items():
                place = "the CPU" if name.endswith("on host") else "copies" if name.startswith("copies") else "the GPU"
                sums[place] += ns
        return max(sums, key=lambda name: sums[name])


def ranked(candidates: Iterable[Candidate], objective: Objective) -> list[Candidate]:
    """The best first; of those that the objective does not tell apart, the one whose prompts and tokens take least, and
    of those that take the same, the one with the least device memory."""
    return sorted(_once(candidates), key=lambda one: (_class(one.cost(objective)), one.cost("mix"), one.vram_bytes))


def nearest_to_usual(found: Sequence[Candidate], objective: Objective) -> list[Candidate]:
    """The same order, but first those that cost within 3 % of the best, or 10 % where its ubatch is smaller than usual,
    by how near their ubatch is to the usual one.

    An engine's kernels are known at the ubatch that its rows were measured at, mostly the usual one: a gain that is no
    more than what rows scatter by, or small ubatches are misjudged by, is no reason to leave it.
    """
    if not found:
        return []
    best = min(found, key=lambda one: one.cost(objective))
    most = best.cost(objective) * (1 + (_SMALLER if best.n_ubatch < USUAL_UBATCH else _SCATTER))
    near = [one for one in found if one.cost(objective) <= most]
    near.sort(key=lambda one: (abs(math.log2(one.n_ubatch / USUAL_UBATCH)), one.cost(objective)))
    return [*near, *(one for one in found if one.cost(objective) > most)]


def pareto(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that no other beats in time to first token, decode and device memory at once, by their memory. Of those
    that are within 1 % of each other in all three the first alone: no prediction tells them apart.
    """
    axes = np.array([(one.ttft_ns, one.decode_ns, one.vram_bytes) for one in candidates])
    beaten = [bool(((axes <= own).all(axis=1) & (axes < own).any(axis=1)).any()) for own in axes]
    front: list[int] = []
    for at in np.flatnonzero(~np.array(beaten, np.bool_)).tolist():
        if not any(np.allclose(axes[at], axes[kept], rtol=_NEAR, atol=0, equal_nan=True) for kept in front):
            front.append(at)
    return sorted((candidates[at] for at in front), key=lambda one: one.vram_bytes)


def some_of_front(front: Sequence[Candidate], best_first: Sequence[Candidate], most: int) -> list[Candidate]:
    """At most so many of the front (at least 3), in its order: the soonest first token, the fastest decode and the
    least memory, then those that come first in `best_first`, which holds all of them.
    """
    if len(front) <= most:
        return list(front)
    ends = [
        min(front, key=lambda one: one.ttft_ns),
        min(front, key=lambda one: one.decode_ns),
        min(front, key=lambda one: one.vram_bytes),
    ]
    on_front = {id(one) for one in front}
    by_need = dict.fromkeys(id(one) for one in (*ends, *best_first) if id(one) in on_front)
    kept = set(list(by_need)[:most])
    return [one for one in front if id(one) in kept]


def _class(cost: float) -> int:
    return round(math.log(max(cost, 1e-9)) / _ALIKE)


def _once(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Each setting once, however often it was come by; every way of keeping everything resident is the same one."""
    found: dict[object, Candidate] = {}
    for one in candidates:
        same = (one.arm, one.policy, one.placement.host) if one.override is not None else ()
        found.setdefault((one.n_ubatch, *same), one)
    return list(found.values())
