"""The `both` arm: what it learns, how it divides, and what that is worth on a machine whose rates are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from executor.devices.sim import SimMachine
from executor.passes import EventRecord, PassResult, UbatchRecord
from executor.policies import make_policy
from executor.policies.base import DIVIDED_SELECTIVE, INLINE_SELECTIVE, INLINE_WHOLE, PolicyOptions
from executor.policies.both import MOST_TOKENS, Both, SideTimes, TimesTogether
from tests.executor.engine_runs import open_session, run_pass
from tests.executor.policies.made_up import dense_item, flags, measured, moe_item

OPTIONS = PolicyOptions()
PLACE: dict[str, Any] = {"device": 0, "phase": "decode", "ubatch": 0, "layer": 0}


def policy() -> Both:
    found = make_policy("both", OPTIONS)
    assert isinstance(found, Both)
    return found


def a_pass(n_host: int, host_ns: int, n_device: int, device_ns: int, n_tokens: int = 64) -> PassResult:
    """One divided layer: activations leave at 100, the host is done after `host_ns`, the device after `device_ns`."""
    events = [
        EventRecord("d2h", "copy activations", 100, 101, stream="compute", bytes=1, **PLACE),
        EventRecord("h2d", "copy selective", 101, 102, stream="compute", tensor="e", n_experts=n_device, **PLACE),
        EventRecord("compute", "experts", 103, 100 + device_ns, stream="compute", **PLACE),
        EventRecord("cpu_compute", "experts", 102, 100 + host_ns, stream="host", n_experts=n_host, **PLACE),
        EventRecord("compute", "attn", 0, 90, stream="compute", **PLACE),
    ]
    result = measured(n_tokens=n_tokens)
    result.events = events
    result.ubatches = [UbatchRecord("decode", 0, n_tokens, 0, "both", 0, 1000)]
    return result


def n_on_host(arm: Both, n_missing: int) -> int:
    on_host = arm.divide(moe_item(), flags(*range(n_missing)))
    return 0 if on_host is None else int(on_host.sum())


def test_experts_are_divided_up_to_a_size_and_dense_weights_never() -> None:
    arm = policy()
    assert [arm.plan(moe_item(n)) for n in (1, 64, MOST_TOKENS)] == [DIVIDED_SELECTIVE] * 3
    assert arm.plan(moe_item(MOST_TOKENS + 1)) == INLINE_SELECTIVE
    assert arm.plan(dense_item()) == INLINE_WHOLE
    assert arm.regime(1, moe_item().unit) == "stream"
    assert arm.regime(1, dense_item().unit) == "cpu"


def test_half_is_divided_before_anything_is_known() -> None:
    assert [n_on_host(policy(), n) for n in (0, 1, 8)] == [0, 0, 4]


@pytest.mark.parametrize(
    ("host_ns", "device_ns", "best"), [(400, 400, 4), (200, 600, 6), (900, 100, 0), (100, 9000, 8)]
)
def test_both_sides_are_made_to_end_together(host_ns: int, device_ns: int, best: int) -> None:
    arm = policy()
    arm.divide(moe_item(), flags(0))
    arm.begin_pass(warmup_number=None)
    arm.learn(a_pass(4, host_ns, 4, device_ns))
    assert n_on_host(arm, 8) == best


def test_a_pass_corrects_what_was_expected() -> None:
    arm = policy()
    arm.divide(moe_item(), flags(0))
    arm.learn(a_pass(4, 400, 4, 400))
    assert n_on_host(arm, 8) == 4
    for _ in range(4):  # the host has become slower
        arm.learn(a_pass(4, 1600, 4, 400))
    assert n_on_host(arm, 8) == 1


def test_the_first_warmup_is_not_timed_and_warmups_try_several_parts() -> None:
    arm = policy()
    tried = set()
    for number in range(2):
        arm.begin_pass(warmup_number=number)
        for layer in range(3):
            on_host = arm.divide(moe_item(1, layer=layer), flags(*range(8)))
            tried.add(0 if on_host is None else int(on_host.sum()))
        arm.learn(a_pass(4, 10**9, 4, 1) if number == 0 else a_pass(4, 400, 4, 400))
    assert tried == {2, 4, 6}
    arm.begin_pass(warmup_number=2)
    assert n_on_host(arm, 8) == 4


def test_the_host_takes_what_is_used_least() -> None:
    arm = policy()
    for _ in range(3):
        arm.learn(measured(used=flags(5, 6, 7)))
    on_host = arm.divide(moe_item(), flags(1, 2, 5, 6))
    assert on_host is not None
    assert np.flatnonzero(on_host).tolist() == [1, 2]


def test_times_of_other_numbers_lie_on_a_line() -> None:
    side = SideTimes()
    assert side.expected(3) is None
    assert side.expected(0) == 0
    side.learn([(2, 100)])
    assert side.expected(4) == 200
    side.learn([(6, 300)])
    assert side.expected(4) == pytest.approx(200)
    assert side.expected(2) == 100
    side.learn([(2, 200), (2, 200), (2, 10**6)])  # one stumble changes nothing
    assert side.expected(2) == 150
    assert TimesTogether(SideTimes(), side).best_for_host(2) == 0, "nothing is known of the host"


def test_what_happens_often_counts() -> None:
    """A host that is put aside in every third layer has the mean's time, not the median's."""
    side = SideTimes()
    side.learn([(4, 100), (4, 100), (4, 100), (4, 100), (4, 1000), (4, 1000), (4, 10**6)])
    assert side.expected(4) == 400


def test_to_bring_the_sums_back_is_weighed_against_leaving_all_to_the_device() -> None:
    for closing_ns, best in ((10, 4), (700, 0)):
        arm = policy()
        arm.divide(moe_item(), flags(0))
        result = a_pass(4, 400, 4, 400)
        result.events.append(
            EventRecord("h2d", "copy activations", 500, 500 + closing_ns, stream="compute", bytes=1, **PLACE)
        )
        arm.learn(result)
        assert n_on_host(arm, 8) == best


FAST: dict[str, Any] = {"memory_gb_s": 1e6, "gemm_tflop_s": 1e6, "host_gflop_s": 1e6}


@pytest.mark.parametrize(("host_gb_s", "gain"), [(20, 0.8), (60, 0.95)])
def test_sharing_beats_both_of_its_halves(host_gb_s: float, gain: float) -> None:
    machine = SimMachine(link_gb_s=20, host_memory_gb_s=host_gb_s, **FAST)
    policy = PolicyOptions(op_offload_min_batch=1)
    arms = ["off", "cpu", "both"]
    with open_session(
        "qwen3-30b-a3b", arms, layers=3, kind="sim", machine=machine, policy=policy, synthetic_routing=True,
        dtype=torch.bfloat16,
    ) as session:  # fmt: skip
        took = {arm: [run_pass(session, arm, 0, 8, 32)[0].t_end for _ in range(4)][-1] for arm in arms}
    assert took["both"] < gain * min(took["off"], took["cpu"])
