"""The hot arm: what it learns, what it sends ahead, and in which order the copy stream serves it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.arrays import Flags
from executor.policies import make_policy
from executor.policies.base import Item, Plan, PolicyOptions
from executor.policies.hot import Hot, LayerTimes, Popularity, size_class
from tests.executor.engine_runs import copies, open_session, run_pass, unit_bytes, weight_bytes
from tests.executor.policies.made_up import (
    EXPERT_BYTES,
    N_EXPERTS,
    flags,
    hot_experts,
    measured,
    moe_item,
    ubatch,
)


def taught(*batches: Flags, n_hidden: int) -> Hot:
    """A hot arm that saw these choices, and layers whose compute hides `n_hidden` experts' copies."""
    policy = Hot("hot", PolicyOptions())
    for used in batches:
        policy.observe(moe_item(), used)
    policy.learn(measured(compute_ns=n_hidden * EXPERT_BYTES, bytes_per_ns=1.0))
    return policy


def test_before_anything_was_seen_nothing_goes_ahead() -> None:
    plan = Hot("hot", PolicyOptions()).plan(moe_item())
    assert (plan.when, plan.what, plan.hot) == ("ahead", "selective", None)


def test_as_many_as_compute_hides_the_most_popular_first() -> None:
    seen = [flags(1, 2, 3, 4), flags(1, 2, 3), flags(1, 2), flags(5)]  # 1 and 2 three times, 3 twice, 4 and 5 once
    assert hot_experts(taught(*seen, n_hidden=2).plan(moe_item())) == [1, 2]
    assert hot_experts(taught(*seen, n_hidden=3).plan(moe_item())) == [1, 2, 3]


def test_sure_experts_go_ahead_even_where_nothing_hides_them() -> None:
    seen = [flags(1, 2, 9)] * 5
    assert hot_experts(taught(*seen, n_hidden=0).plan(moe_item())) == [1, 2, 9]
    assert hot_experts(taught(*seen, flags(1, 2), n_hidden=0).plan(moe_item())) == [1, 2]


def test_what_was_never_used_stays_where_it_is() -> None:
    assert hot_experts(taught(flags(3), flags(3, 7), n_hidden=N_EXPERTS).plan(moe_item())) == [3, 7]


def test_without_measured_times_half_the_experts_may_go() -> None:
    policy = Hot("hot", PolicyOptions())
    for used in (flags(*range(12)), flags(12)):
        policy.observe(moe_item(), used)
    assert hot_experts(policy.plan(moe_item())) == [*range(7), 12]  # 8 of 16, the one used last among them


def test_layers_and_sizes_of_ubatch_are_learned_apart() -> None:
    policy = taught(n_hidden=0)
    policy.observe(moe_item(32, layer=0), flags(1))
    policy.observe(moe_item(1024, layer=0), flags(2))
    policy.observe(moe_item(32, layer=1), flags(3))
    assert hot_experts(policy.plan(moe_item(32, layer=0))) == [1]
    assert hot_experts(policy.plan(moe_item(1024, layer=0))) == [2]
    assert hot_experts(policy.plan(moe_item(32, layer=1))) == [3]


def test_popularity_forgets_slowly() -> None:
    popularity = Popularity()
    for _ in range(200):
        popularity.observe(0, 64, flags(1))
    for _ in range(200):
        popularity.observe(0, 64, flags(2))
    chance = popularity.chance_of_use(0, 64)
    assert chance is not None
    assert chance[1] < 0.05
    assert chance[2] > 0.95
    assert popularity.expected_share(0, 64) == pytest.approx(1 / N_EXPERTS)
    assert popularity.expected_share(1, 64) is None


def test_another_size_serves_where_this_one_was_never_seen() -> None:
    popularity = Popularity()
    popularity.observe(0, 64, flags(1))
    chance = popularity.chance_of_use(0, 4096)
    assert chance is not None
    assert np.flatnonzero(chance).tolist() == [1]


def test_sizes_within_a_factor_of_about_1_4_share_a_class() -> None:
    assert size_class(512) == size_class(580) != size_class(1024)
    assert [size_class(n) for n in (0, 1, 2, 4)] == [0, 0, 2, 4]


def test_times_come_from_the_nearest_measured_size() -> None:
    times = LayerTimes()
    assert times.compute_ns(ubatch(64)) is None
    times.learn(measured(n_tokens=64, compute_ns=100, bytes_per_ns=4.0), 2)
    times.learn(measured(n_tokens=1024, compute_ns=900, bytes_per_ns=2.0), 2)
    assert [times.compute_ns(ubatch(n)) for n in (32, 64, 900, 8192)] == [50, 50, 450, 450]
    assert times.bytes_per_ns == pytest.approx(2.0, rel=1e-3)  # the latest


def test_what_one_layer_hides_is_its_share_of_a_pass_of_several() -> None:
    """The last layer with experts tells how many there are, counted from 0; a pass without any teaches nothing."""
    policy = Hot("hot", PolicyOptions())
    result = measured(compute_ns=8 * EXPERT_BYTES, bytes_per_ns=1.0)
    policy.learn(replace(result, experts=[]))
    assert policy.n_hidden(moe_item()) == N_EXPERTS // 2
    policy.learn(replace(result, experts=[replace(result.experts[0], layer=layer) for layer in (1, 3)]))
    assert policy.n_hidden(moe_item()) == 2


# Recorded passes


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("overrides", [None, "attn|ffn_.*_exps=CPU"])
@pytest.mark.parametrize("kind", ["cpu", "sim"])
def test_missing_experts_go_before_anything_of_a_later_step(kind: str, slots: int, overrides: str | None) -> None:
    options: dict[str, Any] = {"layers": 3, "policy": PolicyOptions(slots=slots), "overrides": overrides}
    with open_session("tiny-moe", ["hot"], kind=kind, synthetic_routing=True, **options) as session:
        run_pass(session, "hot", 64, 0, 32, all_logits=True)
        result, _ = run_pass(session, "hot", 128, 0, 32, repetition=1, all_logits=True)
        place: dict[tuple[int, str], int] = {(s.layer, s.what): s.number for s in session._placed.units}
    on_copy_stream = [e for e in copies(result) if e.stream == "copy"]
    assert len({e.name for e in on_copy_stream} & {"copy hot", "copy missing"}) == 2
    kinds = ["experts" if "exps" in (e.tensor or "") else "mix" for e in on_copy_stream]
    steps = [(e.ubatch, place[e.layer or 0, kind]) for e, kind in zip(on_copy_stream, kinds, strict=True)]
    assert steps == sorted(steps)
    for before, after in pairwise(on_copy_stream):
        assert before.t_end <= after.t_start
    routed = {(e.ubatch, e.layer): e.t_end for e in result.events if e.name == "router"}
    for copy in on_copy_stream:
        if copy.name == "copy missing":
            assert copy.t_start >= routed[copy.ubatch, copy.layer]
        elif kind == "sim":  # real clocks promise an order, not a lead
            assert copy.t_start < routed[copy.ubatch, copy.layer]


def test_what_crosses_the_bus_is_the_hot_and_the_missing_once_each() -> None:
    with open_session("tiny-moe", ["hot", "off"], layers=3, synthetic_routing=True) as session:
        seen = spy(session.policies["hot"])
        for repetition in range(2):
            result, _ = run_pass(session, "hot", 96, 0, 48, repetition=repetition, all_logits=True)
            off, _ = run_pass(session, "off", 96, 0, 48, repetition=repetition, all_logits=True)
            assert result.logits_digest == off.logits_digest
        expert_bytes = unit_bytes(session) // (3 * 32)
    n_experts = 0
    for record in result.experts:
        used = np.unpackbits(np.frombuffer(record.used, np.uint8), bitorder="little")[:32].astype(np.bool_)
        hot = seen[-1][record.ubatch, record.layer]
        assert hot is not None
        assert record.copied == int((hot | used).sum())
        n_experts += record.copied
    assert weight_bytes(result) == n_experts * expert_bytes


def spy(policy: Any) -> list[dict[tuple[int, int], Flags | None]]:
    """What a policy sends ahead, by (ubatch, layer), a dictionary a pass."""
    seen: list[dict[tuple[int, int], Flags | None]] = []
    plan, begin = policy.plan, policy.begin_pass

    def begin_pass(*, warmup_number: int | None) -> None:
        seen.append({})
        begin(warmup_number=warmup_number)

    def planned(item: Item) -> Plan:
        decision: Plan = plan(item)
        seen[-1][item.ubatch.number, item.unit.layer] = decision.hot
        return decision

    policy.plan, policy.begin_pass = planned, begin_pass
    return seen


def test_the_first_ubatch_of_a_fresh_session_copies_nothing_ahead() -> None:
    with open_session("tiny-moe", ["hot"], layers=3, synthetic_routing=True) as session:
        result, _ = run_pass(session, "hot", 96, 0, 48)
    names = {n: {e.name for e in copies(result) if e.ubatch == n} for n in (0, 1)}
    assert names[0] == {"copy selective"}
    assert "copy hot" in names[1]
    assert all(r.copied == r.distinct for r in result.experts if r.ubatch == 0)


def test_later_choices_do_not_change_earlier_decisions(tmp_path: Path) -> None:
    """Two recorded routings that part at the third ubatch: `hot` cannot know, and learns of it afterwards."""
    n_tokens, part_at = 32, 2
    decided = []
    for other in (0, 16):
        path = tmp_path / f"{other}.csv"
        path.write_text(_trace(4 * n_tokens, part_at * n_tokens, other))
        with open_session("tiny-moe", ["hot"], kind="sim", layers=3, synthetic_routing=f"trace:{path}") as session:
            seen = spy(session.policies["hot"])
            run_pass(session, "hot", 4 * n_tokens, 0, n_tokens)
        decided.append({key: None if hot is None else hot.tolist() for key, hot in seen[0].items()})
    earlier = [{key: hot for key, hot in d.items() if key[0] <= part_at} for d in decided]
    later = [{key: hot for key, hot in d.items() if key[0] > part_at} for d in decided]
    assert earlier[0] == earlier[1]
    assert later[0] != later[1]


def _trace(n_positions: int, part_at: int, other: int) -> str:
    """`pos,layer,id0…id3`: experts 0 to 7 in turn; from `part_at` on `other` is added."""
    rows = ["pos,layer,id0,id1,id2,id3"]
    for position in range(n_positions):
        shift = other if position >= part_at else 0
        first = 4 * (position % 2) + shift
        rows += [f"{position},{layer},{first},{first + 1},{first + 2},{first + 3}" for layer in range(3)]
    return "\n".join(rows)


def test_dense_tensors_go_ahead_whole() -> None:
    policy = make_policy("hot", PolicyOptions())
    with open_session("tiny-dense", ["hot", "on"], kind="sim", layers=2) as session:
        hot, on = (run_pass(session, arm, 64, 0, 32)[0] for arm in ("hot", "on"))
    assert policy.streams_ahead
    assert [(e.name, e.t_start, e.t_end) for e in hot.events] == [(e.name, e.t_start, e.t_end) for e in on.events]


@pytest.mark.parametrize(("n_devices", "slots", "n_layers"), [(1, 4, 1), (2, 2, 2), (2, 3, 3)])
def test_a_device_that_waits_for_others_fetches_for_more_layers(n_devices: int, slots: int, n_layers: int) -> None:
    """Hot experts of as many layers as it has slots for, before the first that a router was waited for."""
    options: dict[str, Any] = {"layers": 6, "policy": PolicyOptions(slots=slots), "n_devices": n_devices}
    with open_session("tiny-moe", ["hot"], kind="sim", synthetic_routing=True, **options) as session:
        run_pass(session, "hot", 64, 0, 32)
        result, _ = run_pass(session, "hot", 96, 0, 32, repetition=1, all_logits=True)
    names = [e.name for e in copies(result) if e.device == 0 and e.ubatch == 1]
    assert names[: n_layers + 1] == ["copy hot"] * n_layers + ["copy missing"]


@pytest.mark.parametrize("arm", ["hot", "on", "auto"])
def test_what_goes_in_idle_time_changes_no_result(arm: str) -> None:
    options: dict[str, Any] = {"layers": 6, "policy": PolicyOptions(slots=3, op_offload_min_batch=1), "n_devices": 2}
    with open_session("tiny-moe", ["off", arm], synthetic_routing=True, record_ordering=True, **options) as session:
        runs = [run_pass(session, name, 96, 2, 32)[0] for name in (arm, arm, "off")]
    assert len({run.logits_digest for run in runs}) == 1
    assert all(run.ordering for run in runs)


def test_what_is_more_likely_than_not_goes_where_the_link_is_idle() -> None:
    policy = taught(flags(1, 2), flags(1, 2), flags(1, 3), flags(1, 3), flags(1, 2), n_hidden=0)
    assert hot_experts(policy.plan(moe_item())) == [1]
    assert hot_experts(policy.plan(replace(moe_item(), follows_idle=True))) == [1, 2]
