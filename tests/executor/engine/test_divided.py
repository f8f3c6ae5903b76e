"""A layer's experts divided between host and device: both parts are computed once, beside each other, and add up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from executor.arrays import Flags, Int64
from executor.devices.factory import DeviceOptions
from executor.devices.sim import SimMachine
from executor.model import AttentionShape, LayerShape, Model, ModelShape, MoeFfn, RopeShape
from executor.models.synthetic import QuantPlan, SyntheticSource, model_tensors
from executor.passes import EventRecord, PassJob, PassResult
from executor.placement.place import place
from executor.policies import ARMS
from executor.policies.base import DIVIDED_FROM_BANK, Item, Plan, Policy, PolicyOptions
from executor.policies.traits import ArmTraits
from executor.session import Session, SessionOptions
from tests.executor.engine_runs import open_session, run_pass
from tests.executor.policies.made_up import Divided, DividedByLot, HotDivided, crossed_experts
from tests.profiler.ordering.records import check

POLICY = PolicyOptions(op_offload_min_batch=1, cache_bytes=3 << 20)


@pytest.fixture(autouse=True)
def arms(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(ARMS, "divided", Divided)
    monkeypatch.setitem(ARMS, "hot-divided", HotDivided)
    yield
    Divided.host_share = 0.5


def run(*arms: str, spec: str = "tiny-moe", **options: Any) -> dict[str, tuple[PassResult, torch.Tensor]]:
    found: dict[str, tuple[PassResult, torch.Tensor]] = {}
    settings: dict[str, Any] = {"policy": POLICY, "synthetic_routing": True, "layers": 3} | options
    with open_session(spec, arms, **settings) as session:
        for arm in arms:
            result, logits = run_pass(session, arm, 70, 4, 24)
            assert logits is not None
            found[arm] = result, logits
    return found


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("arm", ["divided", "hot-divided", "divided+cache", "hot-divided+cache"])
def test_the_parts_add_up(arm: str) -> None:
    found = run("off", arm)
    assert error(found[arm][1], found["off"][1]) < 1e-5
    assert found[arm][0].tokens == found["off"][0].tokens
    again = run("off", arm)
    assert again[arm][0].logits_digest == found[arm][0].logits_digest


def test_parts_add_up_with_a_shared_expert_and_biases() -> None:
    moe = MoeFfn(8, 3, 64, n_ff_shared=64, shared_gate=True, expert_bias=True, activation="oai_swiglu")
    layer = LayerShape(AttentionShape(4, 2, 32, RopeShape(1e4, 32)), moe)
    shape = ModelShape("shared", "qwen2moe", 256, 128, (layer,) * 3, 1e-5)
    tensors = model_tensors(shape, QuantPlan.uniform("Q8_0"))
    model = Model(shape, tensors, SyntheticSource(tensors, 0), "preset:shared")
    options = SessionOptions(DeviceOptions("cpu"), max_positions=100, max_ubatch=32, max_ubatches=10, policy=POLICY)
    session = Session(model, place(tensors), ("off", "divided"), options)
    found = {}
    try:
        for arm in session.policies:
            session.run_pass(PassJob(0, arm, 64, 4, 32, 0, 0))
            assert session.last_logits is not None
            found[arm] = session.last_logits.clone()
    finally:
        session.close()
    assert error(found["divided"], found["off"]) < 1e-5


def test_the_host_alone_is_the_cpu_arm_and_the_device_alone_is_off() -> None:
    Divided.host_share = 1.1
    found = run("cpu", "divided")
    assert found["divided"][0].logits_digest == found["cpu"][0].logits_digest
    assert not any(event.tensor and event.kind == "h2d" for event in found["divided"][0].events)
    Divided.host_share = 0.0
    found = run("off", "divided")
    assert found["divided"][0].logits_digest == found["off"][0].logits_digest
    assert "cpu_compute" not in kinds(found["divided"][0].events)


def kinds(events: list[EventRecord]) -> set[str]:
    return {event.kind for event in events}


@pytest.mark.parametrize("arm", ["divided", "divided+cache"])
def test_what_the_host_computes_is_not_copied(arm: str) -> None:
    result = run(arm)[arm][0]
    copied = sum(record.copied for record in result.experts)
    hits = sum(record.hits or 0 for record in result.experts)
    distinct = sum(record.distinct for record in result.experts)
    assert 0.3 * distinct < copied < 0.7 * distinct
    for record in result.experts:
        if record.hits is not None and record.misses is not None:
            assert record.hits + record.misses == record.distinct
            assert record.copied <= record.misses
    assert (hits > 0) == (arm == "divided+cache")


def test_host_and_device_work_beside_each_other() -> None:
    """On a machine whose host takes as long for an expert as the bus takes to bring it, half and half wins."""
    fast: dict[str, Any] = {"memory_gb_s": 1e6, "gemm_tflop_s": 1e6, "host_gflop_s": 1e6}
    machine = SimMachine(link_gb_s=10, host_memory_gb_s=71, **fast)  # .56 bytes a weight there, 4 in float32 here
    with open_session(
        "qwen3-30b-a3b", ["off", "cpu", "divided"], layers=2, kind="sim", machine=machine, policy=POLICY,
        synthetic_routing=True,
    ) as session:  # fmt: skip
        took = {arm: run_pass(session, arm, 0, 8, 32)[0] for arm in ("off", "cpu", "divided")}
    assert took["divided"].t_end < 0.8 * min(took["off"].t_end, took["cpu"].t_end)
    events = took["divided"].events
    host = [event for event in events if event.kind == "cpu_compute"]
    copies = [event for event in events if event.kind == "h2d" and event.tensor is not None]
    assert host
    assert any(a.t_start < b.t_end and b.t_start < a.t_end for a in host for b in copies)


@pytest.mark.parametrize(("seed", "n_devices", "dtype"), [(0, 1, "f32"), (1, 2, "f32"), (2, 1, "bf16"), (3, 3, "bf16")])
def test_any_mixture_of_divisions_adds_up_in_order(
    monkeypatch: pytest.MonkeyPatch, seed: int, n_devices: int, dtype: str
) -> None:
    monkeypatch.setitem(ARMS, "by-lot", DividedByLot)
    monkeypatch.setattr(DividedByLot, "seed", seed)
    settings: dict[str, Any] = {
        "dtype": {"f32": torch.float32, "bf16": torch.bfloat16}[dtype],
        "overrides": "attn_(q|k|v|output)|ffn_.*_exps=CPU",
        "policy": PolicyOptions(slots=2 + seed % 2, cache_bytes=n_devices * 2 << 20),
    }
    with open_session(
        "tiny-moe", ["off", "by-lot"], layers=3, n_devices=n_devices, synthetic_routing=True, record_ordering=True,
        **settings,
    ) as session:  # fmt: skip
        (off, wanted), *passes = (run_pass(session, arm, 70, 5, 24) for arm in ("off", "by-lot", "by-lot"))
    assert not check(off.ordering, *(result.ordering for result, _ in passes)).violations
    for result, logits in passes:
        assert wanted is not None
        assert logits is not None
        most = 1e-5 if dtype == "f32" else 0.04  # later logits follow from the first token
        assert error(logits[0], wanted[0]) < most
        copied = crossed_experts(result)
        for record in result.experts:
            assert record.copied == copied[record.ubatch, record.layer]
            assert record.hits is None or record.hits + (record.misses or 0) == record.distinct


def test_only_what_the_router_chose_can_be_divided() -> None:
    with pytest.raises(ValueError, match="only what the router chose"):
        Plan("inline", "whole", divided=True)
    assert DIVIDED_FROM_BANK.needs_routing


class Greedy(Divided):
    def divide(self, item: Item, missing: Flags, rows: Int64) -> Flags | None:
        return np.ones_like(missing)


class Undeclared(Divided):
    traits = ArmTraits("undeclared", "Undeclared", "inline")


@pytest.mark.parametrize("policy", [Greedy, Undeclared])
def test_a_policy_that_divides_what_it_must_not_is_refused(
    monkeypatch: pytest.MonkeyPatch, policy: type[Policy]
) -> None:
    monkeypatch.setitem(ARMS, "wrong", policy)
    with pytest.raises(ValueError, match="arm 'wrong' divides"):
        run("wrong")
