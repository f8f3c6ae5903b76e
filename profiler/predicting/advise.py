"""What to set under a budget of device memory, by prediction: the answer of `hprof advise`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from executor.memory.budget import Budget
from executor.policies import FULL
from profiler.planning.request import PlacementOptions, RunRequest
from profiler.predicting.candidates import Candidate, Objective, pareto
from profiler.predicting.costs import Costs
from profiler.predicting.expert_use import ExpectedUse
from profiler.predicting.search import Search


@dataclass(frozen=True, slots=True)
class Advice:
    """`ranked`: the best first. `crossover`: the ubatches between which copying ahead begins to pay."""

    model: str
    objective: Objective
    budget: Budget
    ranked: tuple[Candidate, ...]
    crossover: tuple[int | None, int | None]
    next_gib: dict[str, float]
    """By what the next GiB would go to, how much the objective falls, as a share of it."""
    threshold: int | None = None
    """The smallest ubatch whose host weights are better copied than computed on the CPU; None: none that was tried."""

    @property
    def best(self) -> Candidate:
        return self.ranked[0]

    def pareto(self) -> list[Candidate]:
        """Candidates that no other beats in time to first token, decode and device memory at once."""
        return pareto(self.ranked)


def advise(
    request: RunRequest, budget: Budget, objective: Objective, costs: Costs, use: ExpectedUse | None = None
) -> Advice:
    """Search under a budget of memory on each device. `request` says all but the ubatch, which is searched.

    Raises HprofError where nothing fits the budget, with what would.
    """
    search = Search(request, objective, costs, use)
    found = search.under(budget)
    return Advice(
        model=request.model,
        objective=objective,
        budget=budget,
        ranked=tuple(found),
        crossover=_crossover(found),
        next_gib=search.next_gib(found[0], budget),
        threshold=search.threshold(found[0]),
    )


def _crossover(candidates: Sequence[Candidate]) -> tuple[int | None, int | None]:
    """The largest ubatch at which copying in line is faster, and the smallest at which copying ahead is."""
    best: dict[tuple[str, int], float] = {}
    for one in candidates:
        if one.arm in ("off", "on"):
            key = (one.arm, one.n_ubatch)
            best[key] = min(best.get(key, np.inf), one.ttft_ns)
    both = sorted({ub for _, ub in best if ("off", ub) in best and ("on", ub) in best})
    in_line = [ub for ub in both if best["off", ub] <= best["on", ub]]
    ahead = [ub for ub in both if best["on", ub] < best["off", ub]]
    return (max(in_line) if in_line else None, min(ahead) if ahead else None)


def verified_request(request: RunRequest, candidate: Candidate, repetitions: int) -> RunRequest:
    """What to run to see whether a candidate gives what it promises: `full` where it keeps everything resident."""
    cells = tuple(dict.fromkeys(one.cell for one in candidate.predictions))
    arm, placement = candidate.arm, PlacementOptions(candidate.override)
    if candidate.override is None:
        arm, placement = FULL, PlacementOptions()
    return replace(
        request, cells=cells, arms=(arm,), placements=(placement,), policy=candidate.policy, repetitions=repetitions
    )
