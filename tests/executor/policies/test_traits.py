"""What an arm says of itself is what its policy does; a manifest keeps it, and a report needs no torch to ask."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest

from executor.policies import ARMS, PREFETCH_ARMS, arm_names, find_traits, make_policy
from executor.policies.base import Item, Policy, PolicyOptions
from tests.executor.policies.made_up import dense_item, moe_item, plans
from tests.support import ROOT

OPTIONS = PolicyOptions(cache_bytes=1 << 20)
OTHERS: dict[str, Any] = {
    "slots": 3,
    "gate_min_batch": 64,
    "op_offload_min_batch": 5,
    "cache_bytes": 2 << 20,
    "cache_policy": "frequency",
}
SIZES = (1, 16, 64, 512, 1024)
LAYERS = range(4)


def items_of_all_kinds(*, experts: bool = True) -> list[Item]:
    """Ubatches of several sizes in several layers: an arm may decide by either."""
    places = [(n, layer) for n in SIZES for layer in LAYERS]
    dense = [dense_item(n, layer=layer) for n, layer in places]
    return dense + [moe_item(n, layer=layer) for n, layer in places if experts]


def decisions(arm: str, options: PolicyOptions, *, experts: bool = True) -> list[object]:
    """All that a new policy decides."""
    policy = make_policy(arm, options)
    items = items_of_all_kinds(experts=experts)
    regimes = [policy.regime(item.ubatch.n_tokens, item.unit) for item in items]
    cache = (policy.cache_bytes, policy.options.cache_policy if policy.cache_bytes else None)
    return [plans(policy, *items), regimes, policy.n_slots, cache]


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_copies_when_it_says(arm: str) -> None:
    policy = make_policy(arm, OPTIONS)
    when = {when for when, _ in plans(policy, *items_of_all_kinds())}
    wanted = {"inline": {"inline"}, "none": {"inline"}, "ahead": {"ahead"}, "chosen": {"inline", "ahead"}}
    assert when == wanted[policy.traits.copies]
    assert policy.streams_ahead == (policy.traits.copies in ("ahead", "chosen"))
    assert (policy.n_slots == 0) == policy.traits.is_resident == (policy.traits.copies == "none")


@pytest.mark.parametrize("option", [field.name for field in fields(PolicyOptions)])
@pytest.mark.parametrize("arm", arm_names())
def test_an_arm_reads_the_options_that_it_says(arm: str, option: str) -> None:
    traits = find_traits(arm)
    assert traits is not None
    if not traits.is_resident:  # which asks nothing, as it has nothing on the host
        changes = decisions(arm, OPTIONS) != decisions(arm, replace(OPTIONS, **{option: OTHERS[option]}))
        assert changes == (option in traits.reads)


@pytest.mark.parametrize("arm", arm_names())
def test_an_arm_that_needs_experts_does_what_another_does_without(arm: str) -> None:
    traits = find_traits(arm)
    assert traits is not None
    if traits.same_without_experts is not None:
        mine, other = (decisions(name, OPTIONS, experts=False)[:3] for name in (arm, traits.same_without_experts))
        assert mine == other


@pytest.mark.parametrize("kinds", ["experts", "others", "both"])
@pytest.mark.parametrize("arm", arm_names())
def test_what_serves_a_ubatch_does_what_the_arm_does_there(arm: str, kinds: str) -> None:
    policy = make_policy(arm, OPTIONS)
    for n in SIZES:
        items = [] if kinds == "others" else [moe_item(n)]
        items += [] if kinds == "experts" else [dense_item(n, layer=1)]
        there = make_policy(policy.in_effect(items[0].ubatch, [item.unit for item in items]), OPTIONS)
        streamed = [item for item in items if policy.streams(n, item.unit)]
        assert plans(there, *streamed) == plans(policy, *streamed)


def test_an_arm_is_told_as_another_where_it_does_the_same() -> None:
    experts, dense = moe_item(256), dense_item(256, layer=1)

    def told(arm: str, *items: Item) -> str:
        return make_policy(arm, OPTIONS).in_effect(items[0].ubatch, [item.unit for item in items])

    assert [told("gated", *items) for items in ([experts], [dense], [experts, dense])] == ["off", "on", "gated"]
    assert [told("both", *items) for items in ([experts], [dense])] == ["both", "off"]
    assert [told("auto", *items) for items in ([experts], [dense], [experts, dense])] == ["off", "on", "auto"]
    assert [told("both", moe_item(n)) for n in (512, 513)] == ["both", "off"]
    on_host = make_policy("both", replace(OPTIONS, op_offload_min_batch=1024))
    assert on_host.in_effect(moe_item(513).ubatch, [experts.unit]) == "both", "there off copies nothing"
    few = moe_item(1), dense_item(1, layer=1)
    assert [told(arm, few[0]) for arm in ("cache", "on+cache", "both+cache")] == ["cache", "cache", "both+cache"]
    on_host = make_policy("on+cache", OPTIONS)
    in_any_size = make_policy("on+cache", replace(OPTIONS, op_offload_min_batch=1))
    units = [item.unit for item in few]
    assert [one.in_effect(few[0].ubatch, units) for one in (on_host, in_any_size)] == ["cache", "on+cache"]


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_that_learns_says_so(arm: str) -> None:
    learns = ARMS[arm].learn is not Policy.learn or ARMS[arm].observe is not Policy.observe
    assert ARMS[arm].traits.learns == learns


@pytest.mark.parametrize("arm", [name for name in arm_names() if "cache" in name])
def test_a_cache_is_inherited_by_every_combination(arm: str) -> None:
    traits, policy = find_traits(arm), make_policy(arm, OPTIONS)
    assert traits == policy.traits
    assert traits.learns
    assert traits.has_cache
    assert traits.same_without_experts is not None
    base = ARMS["off" if arm == "cache" else arm.removesuffix("+cache")].traits
    assert (traits.copies, traits.held_against) == (base.copies, base.held_against)


def test_arms_are_held_against_arms() -> None:
    named = {name for policy in ARMS.values() for name in policy.traits.held_against}
    assert named <= set(ARMS)
    assert set(PREFETCH_ARMS.values()) <= set(ARMS)


@pytest.mark.parametrize("name", ["", "prefetch", "cpu+cache", "full+cache", "on@2", "+cache", "cache+cache"])
def test_nothing_is_known_of_what_is_no_arm(name: str) -> None:
    assert find_traits(name) is None


def test_a_report_asks_without_torch() -> None:
    code = "import sys, profiler.report.build, executor.policies; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
