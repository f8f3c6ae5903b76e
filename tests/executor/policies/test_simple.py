"""off, off-whole, on, gated, cpu, full: what they decide, and what that moves."""

from __future__ import annotations

import pytest

from executor.errors import HprofError
from executor.passes import PassResult
from executor.policies import ARMS, arm_names, make_policy
from executor.policies.base import Plan, PolicyOptions
from tests.executor.engine_runs import open_session, run_pass, unit_bytes, weight_bytes
from tests.executor.policies.made_up import dense_item, moe_item, plans, ubatch, unit

IN_LINE, AHEAD = ("inline", "whole"), ("ahead", "whole")
SELECTIVE = ("inline", "selective")


@pytest.mark.parametrize(
    ("arm", "dense", "moe"),
    [
        ("off", IN_LINE, SELECTIVE),
        ("off-whole", IN_LINE, IN_LINE),
        ("on", AHEAD, AHEAD),
        ("gated", AHEAD, SELECTIVE),
        ("hot", AHEAD, ("ahead", "selective")),
        ("auto", AHEAD, SELECTIVE),  # before anything is measured
    ],
)
def test_what_an_arm_copies_and_when(arm: str, dense: tuple[str, str], moe: tuple[str, str]) -> None:
    policy = make_policy(arm, PolicyOptions())
    assert plans(policy, dense_item(), moe_item()) == [dense, moe]


@pytest.mark.parametrize(("n_tokens", "is_open"), [(1, False), (511, False), (512, True), (4096, True)])
def test_the_gate_opens_at_its_batch(n_tokens: int, is_open: bool) -> None:
    policy = make_policy("gated", PolicyOptions())
    assert plans(policy, moe_item(n_tokens)) == [AHEAD if is_open else SELECTIVE]
    assert plans(policy, dense_item(n_tokens)) == [AHEAD]
    assert policy.describe(ubatch(n_tokens)) == ("on" if is_open else "off")


def test_the_gate_can_be_moved_and_left_open() -> None:
    assert plans(make_policy("gated", PolicyOptions(gate_min_batch=65)), moe_item(64), moe_item(65)) == [
        SELECTIVE,
        AHEAD,
    ]
    assert plans(make_policy("gated", PolicyOptions(gate_min_batch=0)), moe_item(1)) == [AHEAD]


@pytest.mark.parametrize("arm", [arm for arm, policy in ARMS.items() if not policy.traits.computes_on_host])
def test_small_ubatches_are_computed_on_the_host(arm: str) -> None:
    policy = make_policy(arm, PolicyOptions())
    assert [policy.regime(n, unit()) for n in (1, 31, 32, 512)] == ["cpu", "cpu", "stream", "stream"]
    never = make_policy(arm, PolicyOptions(op_offload_min_batch=0))
    assert never.regime(1, unit()) == "stream"


def test_the_cpu_arm_copies_no_weight_at_any_size() -> None:
    policy = make_policy("cpu", PolicyOptions(op_offload_min_batch=0))
    assert {policy.regime(n, unit()) for n in (1, 32, 100_000)} == {"cpu"}


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("arm", ARMS)
def test_only_arms_that_copy_ahead_take_more_than_one_slot(arm: str, slots: int) -> None:
    wanted = {"inline": 1, "ahead": slots, "chosen": slots, "none": 0}
    assert make_policy(arm, PolicyOptions(slots=slots)).n_slots == wanted[ARMS[arm].traits.copies]


def test_names_of_arms() -> None:
    assert {"off", "off-whole", "on", "gated", "auto", "hot", "cache", "cpu", "full", "hot+cache"} <= set(arm_names())
    assert {make_policy(name, PolicyOptions(cache_bytes=1)).name for name in arm_names()} == set(arm_names())


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("of", "off"),
        ("gate", "gated"),
        ("hot+cach", "hot+cache"),
        ("cpu+cache", "cache"),
        ("ON", "on"),
        ("prefetch", "the arms are off, "),
        ("prefetch", ", cache, off+cache, off-whole+cache, on+cache, gated+cache, auto+cache, hot+cache, both+cache."),
    ],
)
def test_an_unknown_arm_names_those_near_it(name: str, near: str) -> None:
    with pytest.raises(HprofError, match="is not an arm") as error:
        make_policy(name, PolicyOptions(cache_bytes=1))
    assert near in str(error.value)


def test_a_selective_plan_needs_the_router_and_a_whole_one_does_not() -> None:
    assert [Plan("inline", what).needs_routing for what in ("whole", "selective", "bank")] == [False, True, True]


def test_whole_arms_move_everything_and_off_what_is_in_use() -> None:
    arms = ["off", "off-whole", "on"]
    with open_session("tiny-moe", arms, layers=3, synthetic_routing=True) as session:
        results = {arm: run_pass(session, arm, 96, 0, 48, all_logits=True)[0] for arm in arms}
        whole_bytes, expert_bytes = unit_bytes(session), unit_bytes(session) // (3 * 32)
    n_ubatches = 2
    assert weight_bytes(results["off-whole"]) == weight_bytes(results["on"]) == n_ubatches * whole_bytes
    distinct = sum(record.distinct for record in results["off"].experts)
    assert weight_bytes(results["off"]) == distinct * expert_bytes < n_ubatches * whole_bytes
    assert {arm: copy_streams(result) for arm, result in results.items()} == {
        "off": {"compute"},
        "off-whole": {"compute"},
        "on": {"copy"},
    }


def copy_streams(result: PassResult) -> set[str]:
    """The streams that weights were copied on."""
    return {event.stream for event in result.events if event.kind == "h2d" and event.tensor is not None}
