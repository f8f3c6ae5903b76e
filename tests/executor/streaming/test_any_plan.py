"""The streamer carries out whatever a policy plans: any mixture of plans gives the same bits, in a safe order."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from executor.passes import PassResult
from executor.policies import ARMS
from executor.policies.base import PolicyOptions
from tests.executor.engine_runs import open_session, run_pass
from tests.executor.policies.made_up import ByLot, crossed_experts

EVERYTHING = "attn_(q|k|v|output)|ffn_.*_exps=CPU"


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(ARMS, "anything", ByLot)
    return "anything"


def run(arm: str, kind: str, slots: int, seed: int) -> tuple[PassResult, PassResult]:
    """The same pass in line, and under plans drawn by `seed`."""
    policy = PolicyOptions(slots=slots, op_offload_min_batch=1, cache_bytes=3 << 20)
    options: dict[str, Any] = {"kind": kind, "policy": policy, "overrides": EVERYTHING, "synthetic_routing": True}
    with open_session("tiny-moe", ["off", arm], layers=3, **options) as session:
        session.policies[arm].seed = seed  # type: ignore[attr-defined]
        return run_pass(session, "off", 70, 3, 24)[0], run_pass(session, arm, 70, 3, 24)[0]


@pytest.mark.parametrize(("slots", "seed"), [(2, 0), (2, 1), (3, 2), (4, 0)])
def test_any_mixture_of_plans_computes_the_same(arm: str, slots: int, seed: int) -> None:
    off, mixed = run(arm, "cpu", slots, seed)
    assert mixed.logits_digest == off.logits_digest
    assert mixed.tokens == off.tokens
    names = {event.name for event in mixed.events if event.kind == "h2d"}
    assert {"copy whole", "copy hot", "copy missing", "copy missed", "copy selective"} <= names


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("seed", range(10))
def test_any_mixture_of_plans_is_ordered(arm: str, slots: int, seed: int) -> None:
    """A step starts after its last copy ended, and its slot is refilled after the step ended."""
    _, result = run(arm, "sim", slots, seed)
    copies = {e.correlation_id or 0: e for e in result.events if e.kind == "h2d" and e.tensor is not None}
    readers = {e.waits_for: e for e in result.events if e.kind == "compute" and e.waits_for is not None}
    uses = defaultdict(list)
    for number, copy in sorted(copies.items()):
        reader = readers.get(number)
        if reader is not None:
            assert copy.t_end <= reader.t_start
            assert (copy.ubatch, copy.layer) == (reader.ubatch, reader.layer)
        is_dense = "exps" not in (copy.tensor or "")
        if copy.slot is not None:
            uses[is_dense, copy.slot].append((copy.ubatch, copy.layer, copy, reader))
    for in_slot in uses.values():
        for before, after in pairwise(in_slot):
            if before[:2] == after[:2]:  # hot, then missing: of the same step
                continue
            assert before[3] is not None
            assert before[3].t_end <= after[2].t_start


@pytest.mark.parametrize("seed", range(5))
def test_copied_experts_are_counted_as_they_cross_the_bus(arm: str, seed: int) -> None:
    _, result = run(arm, "sim", 2, seed)
    crossed = crossed_experts(result)
    assert {(r.ubatch, r.layer): r.copied for r in result.experts} == {
        key: crossed[key] for key in ((r.ubatch, r.layer) for r in result.experts)
    }
