"""The auto arm: the cheapest of off, on and hot, learned in warm-ups."""

from __future__ import annotations

from typing import Any

import pytest

from executor.devices.sim import SimMachine
from executor.passes import PassJob
from executor.policies import make_policy
from executor.policies.auto import Auto, layer_cost_ns
from executor.policies.base import PolicyOptions
from executor.session import Session
from tests.executor.engine_runs import open_session
from tests.executor.policies.made_up import dense_item, flags, hot_experts, measured, moe_item, plans, ubatch

CANDIDATES = ["off", "on", "hot"]
QUICK_CALLS = SimMachine(link_gb_s=2.0, link_latency_us=1.0, launch_us=1.0, host_call_us=0.0, gemm_tflop_s=0.3)
SLOW_CALLS = SimMachine(link_gb_s=2.0, link_latency_us=1.0, launch_us=1.0, host_call_us=50.0, gemm_tflop_s=100.0)
BALANCED = SimMachine(link_gb_s=25.0, launch_us=1.0, host_call_us=20.0, gemm_tflop_s=0.5)


def fresh() -> Auto:
    policy = make_policy("auto", PolicyOptions())
    assert isinstance(policy, Auto)
    return policy


@pytest.mark.parametrize(
    ("winner", "machine", "routing", "n_ubatch"),
    [
        ("hot", QUICK_CALLS, "lognormal", 128),  # compute hides about half of a layer, and half is popular
        ("off", SLOW_CALLS, "lognormal", 32),  # nothing to hide behind, and each of hot's many copies costs a call
        ("on", BALANCED, "uniform", 128),  # all experts are in use and compute hides them: the router is not awaited
    ],
)
def test_the_cheapest_is_chosen(winner: str, machine: SimMachine, routing: str, n_ubatch: int) -> None:
    arms = [*CANDIDATES, "auto"]
    options: dict[str, Any] = {"max_ubatch": n_ubatch, "max_positions": 4 * n_ubatch + 1, "layers": 4}
    with open_session("tiny-moe", arms, kind="sim", machine=machine, synthetic_routing=routing, **options) as session:
        taken_ns = {arm: _settled(session, arm, n_ubatch) for arm in arms}
        result = session.run_pass(_job("auto", n_ubatch, repetition=1))
    best, second = sorted(taken_ns[arm] for arm in CANDIDATES)[:2]
    assert taken_ns[winner] == best < 0.9 * second
    assert {ubatch.policy for ubatch in result.ubatches} == {winner}
    assert taken_ns["auto"] <= 1.02 * best


def _settled(session: Session, arm: str, n_ubatch: int) -> int:
    """The time of a pass after the arm's warm-ups."""
    for number in range(session.policies[arm].min_warmups):
        session.run_pass(_job(arm, n_ubatch, number, warmup=True))
    return session.run_pass(_job(arm, n_ubatch)).t_end


def _job(arm: str, n_ubatch: int, repetition: int = 0, *, warmup: bool = False) -> PassJob:
    return PassJob(0, arm, 4 * n_ubatch, 0, n_ubatch, 0, repetition, warmup=warmup)


def test_warmups_serve_each_candidate_twice() -> None:
    policy = fresh()
    served = []
    for number in range(policy.min_warmups):
        policy.begin_pass(warmup_number=number)
        served.append(policy.describe(ubatch(64)))
    assert served == ["hot", "on", "off"] * 2
    policy.begin_pass(warmup_number=None)
    assert policy.describe(ubatch(64)) == "off"


def test_dense_tensors_go_ahead_whoever_serves() -> None:
    policy = fresh()
    for number in range(policy.min_warmups):
        policy.begin_pass(warmup_number=number)
        assert plans(policy, dense_item()) == [("ahead", "whole")]


def teach(policy: Auto, first: dict[str, int], second: dict[str, int], n_tokens: int = 64, n_past: int = 0) -> None:
    """Two rounds of warm-ups in which each candidate's ubatch takes so long."""
    for round_number, times in enumerate((first, second)):
        for number, name in enumerate(("hot", "on", "off")):
            policy.begin_pass(warmup_number=3 * round_number + number)
            policy.learn(measured(name, n_tokens=n_tokens, ubatch_ns=times[name], n_past=n_past))
    policy.begin_pass(warmup_number=None)


def test_the_round_in_which_hot_still_learns_is_not_held_against_it() -> None:
    policy = fresh()
    teach(policy, first={"hot": 9_000, "on": 100, "off": 100}, second={"hot": 900, "on": 1000, "off": 1100})
    assert policy.describe(ubatch(64)) == "hot"


def test_sizes_and_depths_are_judged_apart() -> None:
    policy = fresh()
    for n_tokens, n_past, winner in ((64, 0, "off"), (1024, 0, "on"), (64, 4000, "hot")):
        times = {name: 500 if name == winner else 1000 for name in CANDIDATES}
        teach(policy, times, times, n_tokens, n_past)
    chosen = [policy.describe(u) for u in (ubatch(64), ubatch(1024, number=1), ubatch(64, number=2, n_past=4000))]
    assert chosen == ["off", "on", "hot"]


def test_a_choice_holds_for_the_whole_ubatch_and_is_made_anew_in_the_next_pass() -> None:
    policy = fresh()
    times = {"hot": 1000, "on": 1100, "off": 1200}
    teach(policy, times, times)
    assert policy.describe(ubatch(64)) == "hot"
    policy.learn(measured("hot", ubatch_ns=5000))
    policy.learn(measured("hot", ubatch_ns=5000))
    assert policy.describe(ubatch(64)) == "hot"
    policy.begin_pass(warmup_number=None)
    assert policy.describe(ubatch(64)) == "on"


def test_popularity_is_learned_from_passes_that_on_served() -> None:
    policy = fresh()
    policy.begin_pass(warmup_number=1)
    policy.learn(measured("on", used=flags(3, 4)))
    policy.begin_pass(warmup_number=0)
    assert hot_experts(policy.plan(moe_item())) == [3, 4]


@pytest.mark.parametrize(
    ("compute", "copy", "distinct", "costs"),
    [
        (1.0, 10.0, 0.2, {"off": 3.0, "on": 10.0, "hot": 2.0}),
        (10.0, 10.0, 0.9, {"off": 19.0, "on": 10.0, "hot": 10.0}),
        (5.0, 10.0, 0.8, {"off": 13.0, "on": 10.0, "hot": 8.0}),
        (0.0, 10.0, 0.5, {"off": 5.0, "on": 10.0, "hot": 5.0}),
    ],
)
def test_a_layers_cost_by_formula(compute: float, copy: float, distinct: float, costs: dict[str, float]) -> None:
    assert {name: layer_cost_ns(name, compute, copy, distinct) for name in costs} == pytest.approx(costs)


def test_formulas_decide_where_no_candidate_was_measured() -> None:
    """A first warm-up teaches C, the bus's speed and D, but is not timed."""
    policy = fresh()
    policy.begin_pass(warmup_number=0)
    policy.plan(moe_item(4096))  # a whole copy is 16 experts of 100 bytes
    for _ in range(20):
        policy.observe(moe_item(4096), flags(*range(16)))
    policy.learn(measured("hot", n_tokens=4096, compute_ns=1600, bytes_per_ns=1.0))
    policy.begin_pass(warmup_number=None)
    costs = {name: policy._cost_ns(name, ubatch(4096)) for name in CANDIDATES}
    assert costs == pytest.approx({"off": 3200, "on": 1600, "hot": 1600})


@pytest.mark.parametrize(("n_used", "cheapest"), [(2, "off"), (16, "hot")])
def test_what_was_not_measured_is_judged_by_the_share_of_experts_in_use(n_used: int, cheapest: str) -> None:
    """C = 400 ns, T = 1600, and `hot` took 1000. In line it is C + D T: 600 with 2 of 16 experts, 2000 with all."""
    policy, used = fresh(), flags(*range(n_used))
    policy.begin_pass(warmup_number=None)
    policy.plan(moe_item())
    policy.observe(moe_item(), used)
    policy.learn(measured("hot", ubatch_ns=1000, compute_ns=400, bytes_per_ns=1.0, used=used))
    policy.begin_pass(warmup_number=None)
    assert policy.describe(ubatch(64)) == cheapest
