"""Searches what to set: arm, ubatch, slots, cache and placement, by prediction, under a budget of device memory.

Every candidate is planned as a run would be, so that what it reserves is counted, and predicted in all cells that are
asked for. What is best depends on the objective; what nothing beats in all respects is the Pareto front.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final, Literal, NamedTuple

import numpy as np

from executor.errors import HprofError
from executor.memory.budget import DeviceShare, fit_to_budget
from executor.placement.place import Placement
from executor.policies import FULL, arm_traits, make_policy
from profiler.planning.placed_arms import device_shares
from profiler.planning.plan import RunPlan, plan_run
from profiler.planning.request import GridPoint, PlacementOptions, RunRequest
from profiler.predicting.costs import Costs
from profiler.predicting.expert_use import ExpectedUse
from profiler.predicting.placements import override_of, spread
from profiler.predicting.predictor import ArmPredictor, Prediction

Objective = Literal["ttft", "prefill", "decode", "mix"]
OBJECTIVES: Final[tuple[Objective, ...]] = ("ttft", "prefill", "decode", "mix")
_UBATCHES: Final = (64, 128, 256, 512, 1024, 2048, 4096)
_SLOTS: Final = (2, 3)
_CACHE_SHARES: Final = (0.05, 0.15, 0.35)  # of the experts, or of the budget where that is less
_THRESHOLDS: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
_GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting, with what it gives in each cell. `override`: its placement as `-ot` takes it; None: all resident."""

    arm: str
    n_ubatch: int
    slots: int
    cache_mib: int
    placement: Placement
    override: str | None
    predictions: tuple[Prediction, ...]
    reserve_bytes: int = 0
    """What a device holds besides: KV cache or other states, and activations. It is inside the budget too."""

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
        n = sum(one.n_decoded for one in self.predictions)
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


@dataclass(frozen=True, slots=True)
class Advice:
    """`ranked`: the best first. `crossover`: the ubatches between which copying ahead begins to pay."""

    model: str
    objective: Objective
    budget_bytes: int
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
        axes = np.array([(one.ttft_ns, one.decode_ns, one.vram_bytes) for one in self.ranked])
        beaten = [bool(((axes <= own).all(axis=1) & (axes < own).any(axis=1)).any()) for own in axes]
        return sorted(
            (one for one, is_beaten in zip(self.ranked, beaten, strict=True) if not is_beaten), key=_by_memory
        )


def advise(
    request: RunRequest, budget_bytes: int, objective: Objective, costs: Costs, use: ExpectedUse | None = None
) -> Advice:
    """Search under a budget of memory on each device. `request` says all but the ubatch, which is searched.

    Raises HprofError where nothing fits the budget, with what would.
    """
    search = _Search(request, objective, costs, use)
    ranked = search.under(budget_bytes)
    return Advice(
        model=request.model,
        objective=objective,
        budget_bytes=budget_bytes,
        ranked=tuple(ranked),
        crossover=_crossover(ranked),
        next_gib=search.next_gib(ranked[0], budget_bytes),
        threshold=search.threshold(ranked[0]),
    )


class _SizedPlan(NamedTuple):
    """A plan, what devices would hold with everything resident, and what of that is no weights."""

    plan: RunPlan
    shares: list[DeviceShare]
    reserve_bytes: int


class _Search:
    def __init__(self, request: RunRequest, objective: Objective, costs: Costs, use: ExpectedUse | None) -> None:
        self._request, self._objective, self._costs, self._use = request, objective, costs, use
        self._longest = max(max((cell.n_prompt for cell in request.cells), default=1), 1)
        self._plans: dict[int, _SizedPlan] = {}

    def under(self, budget_bytes: int) -> list[Candidate]:
        """Every candidate, the best first."""
        sizes = [ub for ub in _UBATCHES if ub < self._longest] + [min(self._longest, _UBATCHES[-1])]
        found: list[Candidate] = []
        refusal: HprofError | None = None
        for ub, arm in product(dict.fromkeys(sizes), self._request.arms):
            for slots, cache_mib in self._settings(arm, ub, budget_bytes):
                try:
                    found += self._candidates(arm, ub, slots, cache_mib, budget_bytes)
                except HprofError as error:
                    refusal = refusal or error
        if not found:
            raise refusal or HprofError("there is nothing to choose among: give arms, prompts or tokens to generate.")
        return sorted(_once(found), key=lambda one: one.cost(self._objective))

    def next_gib(self, best: Candidate, budget_bytes: int) -> dict[str, float]:
        """What a GiB more would be worth to the best candidate, spent on layers, on slots, or on the cache."""
        options = {"resident layers": (best.slots, best.cache_mib)}
        if best.override is not None and "slots" in arm_traits(best.arm).reads:
            options["one more slot"] = (best.slots + 1, best.cache_mib)
        if arm_traits(best.arm).has_cache:
            options["the cache"] = (best.slots, best.cache_mib + 1024)
        worth = {}
        for name, (slots, cache_mib) in options.items():
            arm = "off" if best.arm == FULL else best.arm
            more = list(self._candidates(arm, best.n_ubatch, slots, cache_mib, budget_bytes + _GIB))
            worth[name] = 1 - min(one.cost(self._objective) for one in more) / best.cost(self._objective)
        return worth

    def threshold(self, best: Candidate) -> int | None:
        """The smallest ubatch of some that is better copied in line than computed on the host."""
        plan = self._plan(best.n_ubatch).plan
        depth = min(cell.n_depth for cell in plan.request.cells)
        cells = [GridPoint(n, 0, n, depth) for n in _THRESHOLDS]
        policy = replace(self._request.policy, op_offload_min_batch=0)
        plan = replace(plan, session=replace(plan.session, policy=policy))
        arms = (ArmPredictor(plan, arm, best.placement, self._costs, self._use) for arm in ("off", "cpu"))
        copied, on_host = (arm.predict("", cells) for arm in arms)
        pairs = zip(_THRESHOLDS, copied, on_host, strict=True)
        return next((n for n, a, b in pairs if (a.ttft_ns or 0.0) < (b.ttft_ns or 0.0)), None)

    def _settings(self, arm: str, ub: int, budget_bytes: int) -> Iterator[tuple[int, int]]:
        """Slots and MiB of cache to try: only what the arm reads."""
        traits = arm_traits(arm)
        experts = sum(t.n_bytes for t in self._plan(ub).plan.model.tensors.values() if "_exps" in t.name)
        caches = [max(1, round(share * min(experts, budget_bytes)) >> 20) for share in _CACHE_SHARES]
        yield from product(_SLOTS if "slots" in traits.reads else _SLOTS[:1], caches if traits.has_cache else [0])

    def _plan(self, ub: int) -> _SizedPlan:
        """The plan of all cells at this ubatch."""
        if ub not in self._plans:
            cells = tuple(dict.fromkeys(replace(cell, n_ubatch=ub) for cell in self._request.cells))
            request = replace(self._request, cells=cells, arms=("off",), placements=(PlacementOptions(),))
            plan = plan_run(request)
            self._plans[ub] = _SizedPlan(plan, *device_shares(request, plan.model, plan.session))
        return self._plans[ub]

    def _candidates(self, arm: str, ub: int, slots: int, cache_mib: int, budget_bytes: int) -> Iterator[Candidate]:
        sized = self._plan(ub)
        plan = sized.plan
        options = replace(self._request.policy, slots=slots, cache_bytes=cache_mib << 20)
        plan = replace(plan, session=replace(plan.session, policy=options))
        first = fit_to_budget(plan.model, {arm: make_policy(arm, options)}, budget_bytes, sized.shares)[arm]
        other = spread(plan.model, first) if first.host and arm_traits(arm).copies in ("ahead", "chosen") else None
        for placement in filter(None, (first, other)):
            predictor = ArmPredictor(plan, arm, placement, self._costs, self._use)
            predictions = tuple(predictor.predict(arm, plan.request.cells))
            name, override = arm if placement.host else FULL, override_of(plan.model, placement)
            yield Candidate(name, ub, slots, cache_mib, placement, override, predictions, sized.reserve_bytes)


def _once(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Every way of keeping everything resident is the same one."""
    resident: dict[int, Candidate] = {}
    for one in candidates:
        if one.override is None:
            resident.setdefault(one.n_ubatch, one)
    return [*resident.values(), *(one for one in candidates if one.override is not None)]


def _by_memory(one: Candidate) -> int:
    return one.vram_bytes


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
    policy = replace(request.policy, slots=candidate.slots, cache_bytes=candidate.cache_mib << 20)
    arm, placement = candidate.arm, PlacementOptions(candidate.override)
    if candidate.override is None:
        arm, placement = FULL, PlacementOptions()
    return replace(request, cells=cells, arms=(arm,), placements=(placement,), policy=policy, repetitions=repetitions)
