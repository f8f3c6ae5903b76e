"""Searches settings under a budget of device memory: arm, ubatch, slots, cache, placement, gate and threshold.

Every candidate is planned as a run would be, so that what it reserves is counted, and predicted in all cells that are
asked for. First all of a coarse grid; then the best of it with what else may be set: one more slot, less of a layer in
host memory, and other thresholds and gates, which only matter where some ubatch lies between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Final, NamedTuple

from executor.errors import BudgetTooSmallError, CacheTooSmallError, HprofError
from executor.memory.budget import Budget, DeviceShare, fit_to_budget, least_budgets
from executor.placement.place import Placement
from executor.policies import FULL, arm_traits, make_policy
from executor.policies.base import PolicyOptions
from profiler.planning.placed_arms import device_of_layers, device_shares
from profiler.planning.plan import RunPlan, plan_run
from profiler.planning.request import GridPoint, PlacementOptions, RunRequest
from profiler.predicting.candidates import USUAL_UBATCH, Candidate, Objective, nearest_to_usual, ranked
from profiler.predicting.costs import Costs
from profiler.predicting.expert_use import ExpectedUse
from profiler.predicting.placements import override_of, spread, thin, trimmed
from profiler.predicting.predictor import ArmPredictor, KnownOfPlan

_UBATCHES: Final = (64, 128, 256, 512, 1024, 2048, 4096)
_MOST_UBATCHES: Final = 64  # of a prompt: smaller ones are never best, and take long to predict
_SLOTS: Final = 2
_MORE_SLOTS: Final = 3
_CACHE_SHARES: Final = (0.1, 0.4, 1.0)  # of what is left beside all experts in host memory
_THRESHOLDS: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
_REFINED: Final = 10
_GIB: Final = 2**30


class _SizedPlan(NamedTuple):
    """A plan, what devices would hold with everything resident, and what of that is no weights."""

    plan: RunPlan
    shares: list[DeviceShare]
    reserve_bytes: int


class Search:
    """The candidates of one request, whose ubatch is searched."""

    def __init__(self, request: RunRequest, objective: Objective, costs: Costs, use: ExpectedUse | None) -> None:
        self._request, self._objective, self._costs, self._use = request, objective, costs, use
        self._longest = max((cell.n_prompt for cell in request.cells), default=0)
        self._plans: dict[int, _SizedPlan] = {}
        self._known = KnownOfPlan()

    def under(self, budget: Budget) -> list[Candidate]:
        """Every candidate, the best first. Raises HprofError where nothing fits, with the least that would."""
        sizes = [ub for ub in _UBATCHES if ub < self._longest <= ub * _MOST_UBATCHES]
        sizes.append(min(self._longest, _UBATCHES[-1]) if self._longest else USUAL_UBATCH)
        found: list[Candidate] = []
        refusal: HprofError | None = None
        tightest: BudgetTooSmallError | None = None
        for ub, arm in product(dict.fromkeys(sizes), self._request.arms):
            for policy in self._policies(arm, ub, budget):
                try:
                    found += self._placed(arm, ub, policy, budget)
                except BudgetTooSmallError as error:
                    tightest = min(error, tightest or error, key=lambda one: one.least_bytes)
                except HprofError as error:
                    refusal = refusal or error
        if not found and tightest is not None:  # ubatches are searched, so none is to be lowered
            raise BudgetTooSmallError(tightest.refusal, tightest.least_bytes, "lower -p or -d")
        if not found:
            raise refusal or HprofError("there is nothing to choose among: give arms, prompts or tokens to generate.")
        best = ranked(found, self._objective)[:_REFINED]
        refined = (one for rough in best for one in self._refined(rough, budget))
        in_order = ranked([*found, *refined], self._objective)
        of_llama_cpp = self._request.engine == "llama.cpp"
        return nearest_to_usual(in_order, self._objective) if of_llama_cpp else in_order

    def next_gib(self, best: Candidate, budget: Budget) -> dict[str, float]:
        """What a GiB more would be worth to the best candidate, spent on layers, on slots, or on the cache."""
        arm, policy = "off" if best.arm == FULL else best.arm, best.policy
        options = {"resident layers": policy}
        if best.override is not None and "slots" in arm_traits(best.arm).reads:
            options["one more slot"] = replace(policy, slots=policy.slots + 1)
        if arm_traits(best.arm).has_cache:
            options["the cache"] = replace(policy, cache_bytes=policy.cache_bytes + _GIB)
        worth = {}
        for name, more in options.items():
            (rough, *_) = ranked(self._placed(arm, best.n_ubatch, more, budget.plus(_GIB)), self._objective)
            found = [rough, *self._refined(rough, budget.plus(_GIB))]
            worth[name] = 1 - min(one.cost(self._objective) for one in found) / best.cost(self._objective)
        return worth

    def threshold(self, best: Candidate) -> int | None:
        """The smallest ubatch of some that is better copied in line than computed on the host."""
        plan = self._plan(best.n_ubatch).plan
        depth = min(cell.n_depth for cell in plan.request.cells)
        cells = [GridPoint(n, 0, n, depth) for n in _THRESHOLDS]
        copied, on_host = (
            self._predictor(arm, best.n_ubatch, replace(best.policy, op_offload_min_batch=0), best.placement).predict(
                arm, cells
            )
            for arm in ("off", "cpu")
        )
        pairs = zip(_THRESHOLDS, copied, on_host, strict=True)
        return next((n for n, a, b in pairs if (a.ttft_ns or 0.0) < (b.ttft_ns or 0.0)), None)

    def _policies(self, arm: str, ub: int, budget: Budget) -> Iterator[PolicyOptions]:
        """Caches to try: only where the arm has one."""
        traits, sized, plain = arm_traits(arm), self._plan(ub), self._request.policy
        caches = [0]
        if traits.has_cache:
            experts = sum(t.n_bytes for t in sized.plan.model.tensors.values() if "_exps" in t.name)
            beside = make_policy("off", plain)
            least = least_budgets(beside, sized.plan.model, sized.shares)
            # each device gets an even part, so that the one with the least room decides
            left = len(least) * max(0, min(own - n for own, n in zip(budget.of(len(least)), least, strict=True)))
            caches = [max(1, round(share * min(experts, left)) >> 20) for share in _CACHE_SHARES]
        for mib in dict.fromkeys(caches):
            yield replace(plain, slots=_SLOTS, cache_bytes=mib << 20)

    def _plan(self, ub: int) -> _SizedPlan:
        """The plan of all cells at this ubatch."""
        if ub not in self._plans:
            cells = tuple(dict.fromkeys(replace(cell, n_ubatch=ub) for cell in self._request.cells))
            request = replace(self._request, cells=cells, arms=("off",), placements=(PlacementOptions(),))
            plan = plan_run(request)
            self._plans[ub] = _SizedPlan(plan, *device_shares(request, plan.model, plan.session))
        return self._plans[ub]

    def _device_of(self, ub: int) -> list[int]:
        """Of each layer."""
        plan = self._plan(ub).plan
        return device_of_layers(plan.request, plan.model)

    def _placed(self, arm: str, ub: int, policy: PolicyOptions, budget: Budget) -> Iterator[Candidate]:
        """The first layers in host memory, and for arms that copy ahead as many evenly spread."""
        first = self._fit(arm, ub, policy, budget)
        yield self._candidate(arm, ub, policy, first)
        if first.host and arm_traits(arm).copies in ("ahead", "chosen"):
            other = spread(self._plan(ub).plan.model, first, self._device_of(ub))
            if other is not None:
                yield self._candidate(arm, ub, policy, other)

    def _refined(self, rough: Candidate, budget: Budget) -> Iterator[Candidate]:
        """A candidate with one more slot, with less of a layer in host memory, and, where that is better, with another
        threshold or gate."""
        if rough.override is None:
            return
        found = [*self._with_less_of_a_layer(rough, budget), *self._with_more_slots(rough, budget)]
        yield from found
        best = ranked([rough, *found], self._objective)[0]
        for policy in self._gates_and_thresholds(best):
            one = self._candidate(best.arm, best.n_ubatch, policy, best.placement)
            if ranked([best, one], self._objective)[0] is one:
                yield one

    def _with_less_of_a_layer(self, rough: Candidate, budget: Budget) -> Iterator[Candidate]:
        for place in self._sub_layer(rough, budget):
            with suppress(CacheTooSmallError):  # its share for one layer's part may not serve a token
                yield self._candidate(rough.arm, rough.n_ubatch, rough.policy, place)

    def _with_more_slots(self, rough: Candidate, budget: Budget) -> list[Candidate]:
        if "slots" not in arm_traits(rough.arm).reads or rough.slots >= _MORE_SLOTS:
            return []
        policy = replace(rough.policy, slots=_MORE_SLOTS)
        try:
            return list(self._placed(rough.arm, rough.n_ubatch, policy, budget))
        except (BudgetTooSmallError, CacheTooSmallError):  # there is no room for it, or too little is left of the cache
            return []

    def _sub_layer(self, rough: Candidate, budget: Budget) -> Iterator[Placement]:
        """Of one layer only what does not fit; and one tensor each of more layers, whose slots are small."""
        sized, ub = self._plan(rough.n_ubatch), rough.n_ubatch
        model = sized.plan.model
        if len(sized.shares) == 1:
            room = budget.n_bytes[0] - rough.vram_bytes - rough.reserve_bytes
            yield from filter(None, [trimmed(model, rough.placement, room)])
        for names in thin(model, rough.placement):
            try:
                first = self._fit(rough.arm, ub, rough.policy, budget, names)
            except BudgetTooSmallError:
                continue  # so few bytes a layer do not make room enough
            if first.host:
                yield spread(model, first, self._device_of(ub)) or first

    def _gates_and_thresholds(self, one: Candidate) -> Iterator[PolicyOptions]:
        """Other values that some ubatch lies between and the present ones."""
        reads = arm_traits(one.arm).reads
        sizes = sorted(set(self._sizes(one.n_ubatch)))
        if "op_offload_min_batch" in reads and not arm_traits(one.arm).computes_on_host:
            for least in _between(sizes, one.policy.op_offload_min_batch, self.threshold(one)):
                yield replace(one.policy, op_offload_min_batch=least)
        if "gate_min_batch" in reads:
            for least in _between(sizes, one.policy.gate_min_batch, None):
                yield replace(one.policy, gate_min_batch=least)

    def _sizes(self, ub: int) -> Iterator[int]:
        """The ubatches that occur."""
        for cell in self._request.cells:
            yield from (min(ub, cell.n_prompt), cell.n_prompt % ub, 1 if cell.n_decoded else 0)

    def _fit(
        self, arm: str, ub: int, policy: PolicyOptions, budget: Budget, only: frozenset[str] | None = None
    ) -> Placement:
        sized = self._plan(ub)
        policies = {arm: make_policy(arm, policy)}
        return fit_to_budget(sized.plan.model, policies, budget, sized.shares, only)[arm]

    def _predictor(self, arm: str, ub: int, policy: PolicyOptions, placement: Placement) -> ArmPredictor:
        plan = self._plan(ub).plan
        plan = replace(plan, session=replace(plan.session, policy=policy))
        return ArmPredictor(plan, arm, placement, self._costs, self._use, self._known)

    def _candidate(self, arm: str, ub: int, policy: PolicyOptions, placement: Placement) -> Candidate:
        sized = self._plan(ub)
        found = tuple(self._predictor(arm, ub, policy, placement).predict(arm, sized.plan.request.cells))
        name, override = arm if placement.host else FULL, override_of(sized.plan.model, placement)
        return Candidate(name, ub, policy, placement, override, found, sized.reserve_bytes)


def _between(sizes: Sequence[int], present: int, liked: int | None) -> Iterator[int]:
    """Values that part the sizes otherwise than `present` does; `liked` where it is as good as another."""
    parted = {sum(size < present for size in sizes)}
    for least in filter(None, [liked, *sizes]):
        at = sum(size < least for size in sizes)
        if at not in parted:
            parted.add(at)
            yield least
