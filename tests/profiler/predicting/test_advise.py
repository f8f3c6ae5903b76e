"""Advice: what is ranked fits the budget, is ordered by the objective, and names placements that can be run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from executor.devices.factory import DeviceOptions
from executor.devices.sim import SimMachine
from executor.errors import BudgetTooSmallError, HprofError
from executor.memory.budget import Budget
from executor.placement.place import Placement, place
from executor.policies.base import PolicyOptions
from profiler.planning.placed_arms import device_shares
from profiler.planning.plan import plan_run
from profiler.planning.request import RunRequest, grid
from profiler.predicting.advise import Advice, advise, verified_request
from profiler.predicting.candidates import OBJECTIVES, some_of_front
from profiler.predicting.costs import RateCosts
from profiler.predicting.placements import override_of, spread, thin, trimmed
from profiler.predicting.search import Search

MACHINE = SimMachine(gemm_tflop_s=2.0, memory_gb_s=200.0, link_gb_s=8.0, host_call_us=0.0, launch_us=2.0)
CELLS = tuple(grid([48, 256], [8], [64], [0]))
REQUEST = RunRequest(
    cells=CELLS, device=DeviceOptions("sim", machine=MACHINE), model="tiny-moe", arms=("off", "on", "cpu", "cache")
)
DTYPE = plan_run(RunRequest(cells=CELLS, device=REQUEST.device, model="tiny-moe")).session.dtype
COSTS = RateCosts(MACHINE, DTYPE)
BUDGET = Budget((29 << 20,))


@pytest.fixture(scope="module")
def advice() -> Advice:
    return advise(REQUEST, BUDGET, "mix", COSTS)


def test_the_best_come_first_and_fit(advice: Advice) -> None:
    costs = [one.cost("mix") for one in advice.ranked]
    assert costs == pytest.approx(sorted(costs), rel=0.003)
    assert all(one.vram_bytes <= BUDGET.n_bytes[0] for one in advice.ranked)
    assert {one.n_ubatch for one in advice.ranked} == {64, 128, 256}
    assert {"off", "on", "cpu", "cache"} == {one.arm for one in advice.ranked}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_each_objective_is_least_at_the_top(objective, advice: Advice) -> None:  # type: ignore[no-untyped-def]
    best = min(advice.ranked, key=lambda one: one.cost(objective))
    assert best.cost(objective) > 0


def test_nothing_on_the_front_is_beaten(advice: Advice) -> None:
    front = advice.pareto()
    assert advice.best in front
    for one in front:
        better = [o for o in front if o.ttft_ns < one.ttft_ns and o.decode_ns < one.decode_ns]
        assert all(o.vram_bytes > one.vram_bytes for o in better)


def test_a_front_that_is_cut_keeps_the_best_of_each_axis(advice: Advice) -> None:
    front = advice.pareto()
    for most in range(3, len(front) + 1):
        some = some_of_front(front, advice.ranked, most)
        assert len(some) == most
        assert some == [one for one in front if one in some]
        for axis in ("ttft_ns", "decode_ns", "vram_bytes"):
            assert min(getattr(one, axis) for one in some) == min(getattr(one, axis) for one in front)
    assert advice.best in some_of_front(front, advice.ranked, 4)


def test_a_gib_more_is_worth_something_and_never_costs(advice: Advice) -> None:
    assert advice.next_gib
    assert advice.next_gib["resident layers"] > 0


def test_overrides_place_what_was_predicted(advice: Advice) -> None:
    tensors = plan_run(REQUEST_OFF).model.tensors
    for one in advice.ranked:
        if one.override is not None:
            assert place(tensors, overrides=one.override).host == one.placement.host


def test_what_the_objective_does_not_tell_apart_is_told_by_the_whole_time() -> None:
    found = advise(REQUEST_OFF, BUDGET, "decode", COSTS)
    alike = [one for one in found.ranked if one.decode_ns == pytest.approx(found.best.decode_ns, rel=0.001)]
    assert len({one.n_ubatch for one in alike}) > 1
    assert found.best.ttft_ns == min(one.ttft_ns for one in alike)


def test_a_short_prompt_that_the_cpu_does_better_moves_the_threshold() -> None:
    cells = tuple(grid([48], [0], [64], [0]))
    slow_link = SimMachine(gemm_tflop_s=2.0, memory_gb_s=200.0, link_gb_s=0.5, host_call_us=0.0, host_memory_gb_s=50.0)
    request = replace(REQUEST_OFF, cells=cells)
    found = advise(request, BUDGET, "ttft", RateCosts(slow_link, DTYPE))
    assert found.best.policy.op_offload_min_batch > 48
    assert found.best.ttft_ns < min(one.ttft_ns for one in found.ranked if one.policy.op_offload_min_batch == 32)


def test_of_the_last_layer_only_what_does_not_fit_is_in_host_memory() -> None:
    model = plan_run(REQUEST_OFF).model
    whole = place(model.tensors, n_cpu_moe=2)
    one = max(tensor.n_bytes for tensor in model.tensors.values() if "_exps" in tensor.name)
    placement = trimmed(model, whole, one)
    assert placement is not None
    assert len(placement.host) == len(whole.host) - 1
    assert place(model.tensors, overrides=override_of(model, placement)).host == placement.host
    assert trimmed(model, whole, 1) is None


def test_one_tensor_of_more_layers_may_be_in_host_memory_instead() -> None:
    model = plan_run(REQUEST_OFF).model
    [names] = thin(model, place(model.tensors, n_cpu_moe=2))
    assert names < {"ffn_down_exps.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight"}
    assert list(thin(model, place(model.tensors, overrides="ffn_down_exps=CPU"))) == []


ONE_DEVICE = [0] * 6
REQUEST_OFF = RunRequest(cells=CELLS, device=REQUEST.device, model="tiny-moe", arms=("off",))


def test_spread_layers_are_as_many_and_lie_apart() -> None:
    model = plan_run(REQUEST_OFF).model
    first = place(model.tensors, n_cpu_moe=2)
    other = spread(model, first, ONE_DEVICE)
    assert other is not None
    assert len(other.host) == len(first.host)
    layers = other.host_layers()
    assert len(layers) == 2
    assert layers[1] - layers[0] > 1
    everything = place(model.tensors, n_cpu_moe=99)
    assert spread(model, everything, ONE_DEVICE) is None
    assert override_of(model, everything) == r"ffn_(down|gate|up)_exps=CPU"


def test_layers_spread_within_their_device() -> None:
    model = plan_run(REQUEST_OFF).model
    first = place(model.tensors, overrides=r"blk\.(0|3|4)\.ffn_.*_exps=CPU")
    other = spread(model, first, [0, 0, 0, 1, 1, 1, 1])
    assert other is not None
    assert [layer < 3 for layer in other.host_layers()] == [True, False, False]


def test_devices_of_unequal_memory_each_keep_within_theirs() -> None:
    budgets = (16 << 20, 12 << 20)
    request = replace(REQUEST, device=replace(REQUEST.device, n_devices=2), arms=("off", "on"))
    found = advise(request, Budget(budgets), "mix", COSTS)
    for one in found.ranked:
        plan = plan_run(verified_request(request, one, repetitions=1))
        shares, _ = device_shares(plan.request, plan.model, plan.session)
        for share, own in zip(shares, budgets, strict=True):
            host = [plan.model.tensors[name] for name in one.placement.host]
            here = [tensor for tensor in host if tensor.layer in share.layers]
            largest = max((sum(t.n_bytes for t in here if t.layer == at) for at in share.layers), default=0)
            slots = one.slots if one.arm == "on" else 1
            assert share.full_bytes - sum(t.n_bytes for t in here) + slots * largest <= own
    assert found.best.override is not None


def test_what_is_verified_is_what_was_advised(advice: Advice) -> None:
    one = next(found for found in advice.ranked if found.arm == "on")
    plan = plan_run(verified_request(REQUEST, one, repetitions=2))
    assert plan.setups[0].placement.host == one.placement.host
    assert {cell.n_ubatch for cell in plan.request.cells} == {one.n_ubatch}


def test_a_budget_that_nothing_fits_says_what_would() -> None:
    with pytest.raises(BudgetTooSmallError, match=r"too small for arm .* give that much, or lower -p or -d\.$") as told:
        advise(REQUEST, Budget((1 << 20,)), "mix", COSTS)
    assert advise(REQUEST, Budget((told.value.least_bytes,)), "mix", COSTS).best.n_ubatch == 64
    with pytest.raises(BudgetTooSmallError):
        advise(REQUEST, Budget((told.value.least_bytes - 1,)), "mix", COSTS)


def test_no_setting_comes_twice() -> None:
    """More slots are tried beside the first layers and beside ones that are spread, for the same placements."""
    found = advise(replace(REQUEST, arms=("on",)), BUDGET, "mix", COSTS).ranked
    settings = [(one.arm, one.n_ubatch, one.policy, one.placement.host) for one in found]
    assert len(set(settings)) == len(settings)


def test_a_budget_for_everything_keeps_everything_resident() -> None:
    found = advise(REQUEST_OFF, Budget((1 << 30,)), "ttft", COSTS)
    assert {one.arm for one in found.ranked} == {"full"}
    assert found.best.override is None


def test_a_cache_over_two_devices_has_the_room_of_both() -> None:
    """11.5 of 16 MiB go to what stays on each device: a bank of 9 MiB, half of it on each, fits."""
    request = replace(REQUEST, device=replace(REQUEST.device, n_devices=2), arms=("cache",))
    found = advise(request, Budget((16 << 20,)), "decode", COSTS)
    assert max(one.cache_mib for one in found.ranked) == found.best.cache_mib == 9
    plan_run(verified_request(request, found.best, repetitions=1))  # as a run would count it


@pytest.mark.parametrize("is_of_part", [False, True], ids=["more slots", "less of a layer"])
def test_only_what_has_no_room_is_passed_over(is_of_part: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In refining the best settings: any other refusal is a fault, and is not to look like too small a budget."""
    fit = Search._fit
    refusals: dict[str, type[HprofError]] = {"refusal": HprofError}

    def refusing(self: Search, arm: str, ub: int, policy: PolicyOptions, budget: Budget, only: Any = None) -> Placement:
        if only is not None if is_of_part else policy.slots > 2:
            raise refusals["refusal"]("refused here")
        return fit(self, arm, ub, policy, budget, only)

    monkeypatch.setattr(Search, "_fit", refusing)
    request = replace(REQUEST, arms=("on",))
    with pytest.raises(HprofError, match="refused here"):
        Search(request, "mix", COSTS, None).under(BUDGET)
    refusals["refusal"] = BudgetTooSmallError
    assert Search(request, "mix", COSTS, None).under(BUDGET)
