"""Layers whose experts CPU and device share: how many each takes, and how long that keeps them.

The rows leave for the CPU behind the router. It multiplies with its experts while the others are copied in line and
multiplied on the device; its sums come back last. How many it takes is asked of the arm's own rule
(`executor.policies.both`), which is told what both sides take beside each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from executor.arrays import Floats
from executor.policies.both import soonest
from profiler.predicting.costs import Costs, Points
from profiler.predicting.expert_use import ExpectedUse, expected_runs, runs_of_part
from profiler.predicting.layout import LayerKind, Step
from profiler.predicting.plans import Decider

_ROUNDS: Final = 3  # a bank's hits follow from what is uploaded, which follows from what it does not hit
_NEGLIGIBLE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Shared:
    """One layer's experts, divided: expected times in ns, from the moment at which both sides may begin.

    `later` is when the later side is done, `host_share` how likely the CPU has a part at all.
    """

    host: float
    compute: float
    copies: float
    later: float
    copied_bytes: float
    host_share: float

    @classmethod
    def expected(cls, parts: list[tuple[float, Shared]]) -> Shared:
        """The mean of what may happen, each with its chance."""
        return cls(*(sum(chance * getattr(one, part.name) for chance, one in parts) for part in fields(cls)))


class Sharing:
    """The layers of one arm at ubatches of one phase. `points` say what goes on beside the steps."""

    def __init__(self, decider: Decider, costs: Costs, points: Points) -> None:
        assert decider.use is not None
        self._decider, self._costs, self._points = decider, costs, points
        self._use: ExpectedUse = decider.use
        self._known: dict[tuple[str, int, int, int, int], tuple[int, Shared]] = {}
        self._uploaded: dict[tuple[str, int], float] = {}

    def layer(self, kind: LayerKind, layer: int, n_tokens: int) -> Shared:
        """A layer's experts in a ubatch of `n_tokens`."""
        return self._mean(kind, layer, n_tokens, self._admitted(kind, layer))[1]

    def _admitted(self, kind: LayerKind, layer: int) -> float:
        """The share of what a token misses that the bank takes in: what the CPU takes is not uploaded."""
        if layer not in self._decider.banks:
            return 1.0
        key = self._like(kind, layer)
        if key not in self._uploaded:
            admitted = 1.0
            for _ in range(_ROUNDS):
                missing = float(self._decider.missing([layer], 1, admitted).sum())
                admitted = 1 - self._mean(kind, layer, 1, admitted)[0] / max(missing, _NEGLIGIBLE)
            self._uploaded[key] = admitted
        return self._uploaded[key]

    def _like(self, kind: LayerKind, layer: int) -> tuple[str, int]:
        """What layers that are divided alike have in common: their experts, and what of one is copied."""
        return kind.steps[-1].signature, self._decider.layout.units[layer, "experts"].expert_bytes

    def _mean(self, kind: LayerKind, layer: int, n_tokens: int, admitted: float) -> tuple[float, Shared]:
        """How many experts the CPU takes, and what that takes, over the numbers that may be missing."""
        used = float(self._use.distinct(n_tokens)[self._decider.layout.moe_layers.index(layer)])
        (chances,) = self._decider.missing([layer], n_tokens, admitted)
        missing, in_all = float(chances.sum()), max(1, round(used))
        varies = n_tokens == 1 and layer in self._decider.banks
        likely = _binomial(in_all, min(1.0, missing / used)) if varies else _between(missing)
        runs = float(expected_runs(chances)) / max(missing, _NEGLIGIBLE)
        parts = [
            (chance, self._one(kind, layer, n_tokens, number, max(0, in_all - number), runs))
            for number, chance in likely
        ]
        n_host = sum(chance * n for chance, (n, _) in parts)
        return n_host, Shared.expected([(chance, shared) for chance, (_, shared) in parts])

    def _one(
        self, kind: LayerKind, layer: int, n_tokens: int, missing: int, held: int, runs: float
    ) -> tuple[int, Shared]:
        """With so many experts missing, `runs` for each, and so many held by the bank."""
        key = (*self._like(kind, layer), n_tokens, missing, held)
        if key not in self._known:
            self._known[key] = self._divided(kind, layer, n_tokens, missing, held, runs)
        return self._known[key]

    def _divided(
        self, kind: LayerKind, layer: int, n_tokens: int, missing: int, held: int, runs: float
    ) -> tuple[int, Shared]:
        on_host = np.arange(missing + 1.0)  # every number that the CPU could take
        copied, here = missing - on_host, missing + held - on_host
        share = self._use.share_of_least(n_tokens, on_host / max(1, missing + held))
        (host_step,) = (step for step in kind.on_host["experts"] if step.where == "host")
        device_step = kind.steps[-1]
        host = self._ns(host_step, n_tokens * share, on_host)
        compute = self._ns(device_step, n_tokens * (1 - share), here)
        n_bytes = copied * self._decider.layout.units[layer, "experts"].expert_bytes
        in_all = np.full_like(copied, missing)
        pieces = runs_of_part(in_all, runs * in_all, copied / max(1, missing))
        copies = np.where(copied > 0, self._costs.copy_ns(n_bytes, pieces, "divided"), 0.0)
        device = np.where(copied > 0, self._costs.divided_copy_delay_ns, 0.0) + copies + compute
        back = np.where(on_host > 0, self._back_ns(kind, n_tokens), 0.0)
        best = soonest((np.maximum(host, device) + back).tolist()) or 0
        shared = Shared(
            host=float(host[best]),
            compute=float(compute[best]),
            copies=float(copies[best]),
            later=max(float(host[best]), float(device[best])),
            copied_bytes=float(n_bytes[best]),
            host_share=float(best > 0),
        )
        return best, shared

    def _back_ns(self, kind: LayerKind, n_tokens: int) -> float:
        """The way of the CPU's sums to the device, and their addition."""
        _, *back = (step for step in kind.on_host["experts"] if step.where != "host")
        rows = np.full(1, float(n_tokens))
        points = Points(rows, np.zeros(1), self._points.phase, self._points.setting)
        return float(sum(self._costs.step_ns(step, points, rows)[0] for step in back))

    def _ns(self, step: Step, n_tokens: Floats, n_experts: Floats) -> Floats:
        """(numbers,): what a step takes with so many of a layer's experts; nothing with none."""
        is_any = n_experts > 0
        rows = np.where(is_any, n_tokens, 1.0)
        points = Points(rows, np.zeros_like(rows), self._points.phase, self._points.setting)
        return np.where(is_any, self._costs.step_ns(step, points, n_experts), 0.0)


def _between(mean: float) -> Iterator[tuple[int, float]]:
    """The whole numbers beside a mean, with the chances that make it the mean."""
    below = int(mean)
    yield below, 1 - (mean - below)
    if mean > below:
        yield below + 1, mean - below


def _binomial(n: int, chance: float) -> Iterator[tuple[int, float]]:
    """How many of `n` may be missing, where each is with that chance."""
    from scipy.special import gammaln, xlog1py, xlogy  # takes long to import, and only arms that divide ask for it

    numbers: NDArray[np.int_] = np.arange(n + 1)
    ways = gammaln(n + 1) - gammaln(numbers + 1) - gammaln(n - numbers + 1)
    chances = np.exp(ways + xlogy(numbers, chance) + xlog1py(n - numbers, -chance))
    for number, likely in zip(numbers.tolist(), chances.tolist(), strict=True):
        if likely > _NEGLIGIBLE:
            yield number, likely
