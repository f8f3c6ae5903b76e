"""The `both` arm: what it learns, how it divides, and what that is worth on a machine whose rates are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from executor.arrays import Flags
from executor.devices.base import StreamName
from executor.devices.sim import SimDevice, SimMachine
from executor.passes import EventRecord, PassJob, PassResult, UbatchRecord
from executor.policies import make_policy
from executor.policies.base import DIVIDED_SELECTIVE, INLINE_SELECTIVE, INLINE_WHOLE, Item, PolicyOptions
from executor.policies.both import MOST_TOKENS, Both, SideTimes, Taken, TimesTogether
from executor.session import Session
from profiler.arithmetic.turns import needs_warmup
from tests.executor.engine_runs import open_session
from tests.executor.policies.made_up import EXPERT_BYTES, dense_item, flags, measured, moe_item

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


def divided(arm: Both, item: Item, missing: Iterable[int], rows: Iterable[int] | None = None) -> Flags | None:
    """Which of the `missing` the host gets, where each has that many `rows`; None: one."""
    found = flags(*missing)
    of_each = found.astype(np.int64)
    if rows is not None:
        of_each[found] = list(rows)
    return arm.divide(item, found, of_each)


def n_on_host(arm: Both, n_missing: int, n_tokens: int = 64, layer: int = 0, n_past: int = 0) -> int:
    on_host = divided(arm, moe_item(n_tokens, layer=layer, n_past=n_past), range(n_missing))
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
    divided(arm, moe_item(), [0])
    arm.begin_pass(warmup_number=None)
    arm.learn(a_pass(4, host_ns, 4, device_ns))
    assert n_on_host(arm, 8) == best


def test_a_pass_corrects_what_was_expected() -> None:
    arm = policy()
    divided(arm, moe_item(), [0])
    arm.learn(a_pass(4, 400, 4, 400))
    assert n_on_host(arm, 8) == 4
    for _ in range(4):  # the host has become slower
        arm.learn(a_pass(4, 1600, 4, 400))
    assert n_on_host(arm, 8) <= 1


def test_times_belong_to_the_rows_that_a_layer_has() -> None:
    """A prompt's last layer has one row, whatever its ubatch: what its few experts took says nothing of the others."""
    arm = policy()
    for n_tokens in (64, 1):
        divided(arm, moe_item(n_tokens), [0])
    result = a_pass(4, 400, 4, 400)
    for _ in range(3):
        arm.learn(result)
    last = a_pass(8, 1, 1, 900, n_tokens=1)
    last.ubatches = result.ubatches
    arm.learn(last)
    assert n_on_host(arm, 8) == 4, "as before"
    assert n_on_host(arm, 8, n_tokens=1) == 8


def test_the_first_warmup_is_not_timed_and_warmups_try_each_side_alone_and_divisions() -> None:
    arm = policy()
    tried: dict[int, set[int]] = {}
    for number in range(3):
        arm.begin_pass(warmup_number=number)
        found = [divided(arm, moe_item(1, layer=layer), range(8)) for layer in range(3)]
        tried[number] = {0 if on_host is None else int(on_host.sum()) for on_host in found}
        arm.learn(a_pass(4, 10**9, 4, 1, n_tokens=1) if number == 0 else a_pass(4, 400, 4, 400, n_tokens=1))
    assert tried[1] | tried[2] == {0, 2, 4, 6, 8}
    assert arm.min_warmups == 4
    arm.begin_pass(warmup_number=3)
    assert [n_on_host(arm, 8, layer=layer, n_tokens=1) for layer in range(3)] == [3, 4, 5], "what lies beside the best"
    arm.begin_pass(warmup_number=None)
    assert n_on_host(arm, 8, n_tokens=1) == 4


def test_the_host_takes_what_has_fewest_rows_and_then_what_is_used_least() -> None:
    arm = policy()
    for _ in range(3):
        arm.learn(measured(used=flags(5, 6, 7)))
    on_host = divided(arm, moe_item(), [1, 2, 5, 6])
    assert on_host is not None
    assert np.flatnonzero(on_host).tolist() == [1, 2]
    on_host = divided(arm, moe_item(), [1, 2, 5, 6], [300, 3, 3, 2])
    assert on_host is not None
    assert np.flatnonzero(on_host).tolist() == [2, 6], "rows of this ubatch count before what was"


def test_times_of_other_numbers_lie_on_a_line() -> None:
    side = SideTimes()
    assert side.expected(3) == math.inf
    assert side.expected(0) == 0
    side.learn([(2, 100)])
    assert side.expected(4) == 200
    side.learn([(6, 300)])
    assert side.expected(4) == pytest.approx(200)
    assert side.expected(2) == 100
    side.learn([(2, 200)] * 7 + [(2, 10**6)])  # one stumble changes nothing
    assert 150 < side.expected(2) < 200
    for _ in range(8):
        side.learn([(2, 200)] * 8)
    assert side.expected(2) == pytest.approx(200, rel=0.02), "what was seen last counts most"


def test_what_happens_often_counts() -> None:
    """A host that is put aside in every third layer has the mean's time, not the median's."""
    side = SideTimes()
    side.learn([(4, 100)] * 5 + [(4, 1000)] * 2 + [(4, 10**6)])
    assert side.expected(4) == pytest.approx((5 * 100 + 3 * 1000) / 8)


def alone(n_host: int, n_device: int, layer_ns: int) -> Taken:
    return Taken(n_host, layer_ns if n_host else 0, n_device, layer_ns if n_device else 0, layer_ns)


def test_layers_are_divided_only_where_that_takes_less_than_either_side_alone() -> None:
    """Each side takes 400 of 8 experts' 800 alone; divided layers take what is measured of them, whatever sides say."""
    for layer_ns, best in ((500, 4), (790, 4), (810, 0), (3000, 0)):
        times = TimesTogether()
        times.learn([alone(8, 0, 900), alone(0, 8, 800), Taken(4, 400, 4, 400, layer_ns)] * 3)
        assert times.best_for_host(8) == best
        assert times.expected(8)[4] == pytest.approx(layer_ns)
    times = TimesTogether()
    times.learn([alone(8, 0, 700), alone(0, 8, 800), Taken(4, 400, 4, 400, 900)] * 3)
    assert times.best_for_host(8) == 8
    assert TimesTogether().best_for_host(8) is None


def test_what_was_not_chosen_is_looked_at_now_and_then_and_seldom_where_it_costs_much() -> None:
    for device_ns, least, most in ((450, 50, 4 / 256), (1100, 30, 4 / 256), (8000, 0, 4 / 256)):
        arm = policy()
        divided(arm, moe_item(1), [0])
        times = TimesTogether()
        times.learn([alone(8, 0, 400), alone(0, 8, device_ns), Taken(4, 400, 4, 400, 500)] * 3)
        arm._times[0, EXPERT_BYTES] = times
        n_layers, n_tokens = 24, 1000
        tried = [n_on_host(arm, 8, 1, layer, n_past) for n_past in range(n_tokens) for layer in range(n_layers)]
        assert (tried.count(0) >= least) if least else not tried.count(0)
        assert tried.count(0) * (device_ns / 400 - 1) < 0.005 * len(tried), "what it costs is bounded"
        assert len(tried) - tried.count(8) < most * len(tried)
        again = [n_on_host(arm, 8, 1, layer, n_past) for n_past in range(n_tokens) for layer in range(n_layers)]
        assert again == tried, "the place of a token says when"


def test_to_bring_the_sums_back_is_weighed_against_leaving_all_to_the_device() -> None:
    for closing_ns, best in ((10, 4), (700, 0)):
        arm = policy()
        divided(arm, moe_item(), [0])
        result = a_pass(4, 400, 4, 400)
        result.events.append(
            EventRecord("h2d", "copy activations", 500, 500 + closing_ns, stream="compute", bytes=1, **PLACE)
        )
        arm.learn(result)
        assert n_on_host(arm, 8) == best


FAST: dict[str, Any] = {"memory_gb_s": 1e6, "gemm_tflop_s": 1e6, "host_gflop_s": 1e6}


HALVES = ("off", "cpu")


class Shares:
    """Arms `off`, `cpu` and `both` in one session, on a machine whose host stalls when `stall_ns` says so."""

    def __init__(self, session: Session) -> None:
        self.session, self._n_passes = session, 0

    def warm_up(self) -> None:
        """As many passes as a run would have."""
        for arm in (*HALVES, "both"):
            took: list[int] = []
            while needs_warmup(took, self.session.policies[arm].min_warmups):
                took.append(self._pass(arm, len(took), warmup=True))

    def measure(self, n: int = 1) -> dict[str, int]:
        """What `n` passes take, by arm."""
        found = dict.fromkeys((*HALVES, "both"), 0)
        for _ in range(n):
            for arm in found:
                found[arm] += self._pass(arm, self._n_passes, warmup=False)
            self._n_passes += 1
        return found

    def _pass(self, arm: str, repetition: int, *, warmup: bool) -> int:
        result = self.session.run_pass(PassJob(0, arm, 0, 64, 32, 0, repetition, warmup=warmup))
        return result.t_end - result.t_start


@contextmanager
def shares(link_gb_s: float, host_gb_s: float) -> Iterator[Shares]:
    machine = SimMachine(link_gb_s=link_gb_s, host_memory_gb_s=host_gb_s, **FAST)
    with open_session(
        "qwen3-30b-a3b", ["off", "cpu", "both"], layers=3, kind="sim", machine=machine, synthetic_routing=True,
        policy=PolicyOptions(op_offload_min_batch=1), dtype=torch.bfloat16,
    ) as session:  # fmt: skip
        yield Shares(session)


def slow_host(monkeypatch: pytest.MonkeyPatch, extra_ns: Callable[[], float]) -> None:
    """From now on the host's work takes so much longer, asked anew for each layer."""
    launch = SimDevice.launch

    def launch_slowly(device: SimDevice, stream: StreamName, *args: Any, **options: Any) -> None:
        launch(device, stream, *args, **options)
        if stream == "host":
            device._at_ns[stream] += extra_ns()

    monkeypatch.setattr(SimDevice, "launch", launch_slowly)


@pytest.mark.parametrize(
    ("link_gb_s", "host_gb_s", "of_the_better"),
    [(20, 20, 0.8), (20, 60, 0.95), (60, 20, 0.95), (100, 2, 1.02), (2, 100, 1.02)],
    ids=["balanced", "faster host", "faster link", "slow host", "slow link"],
)
def test_after_a_runs_warmups_sharing_beats_its_halves_or_leaves_all_to_the_better(
    link_gb_s: float, host_gb_s: float, of_the_better: float
) -> None:
    with shares(link_gb_s, host_gb_s) as arms:
        arms.warm_up()
        first = arms.measure()
        assert first["both"] < of_the_better * min(first[arm] for arm in HALVES)
        later = [arms.measure()["both"] for _ in range(3)]
        assert first["both"] < 1.02 * min(later), "balanced by the time it is measured"


@pytest.mark.parametrize("seed", range(3))
def test_a_host_that_stalls_at_random_makes_it_no_slower_than_the_better_half(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sixth layer the host is put aside for as long as several layers take: its mean counts, not its median."""
    rng = np.random.default_rng(seed)
    slow_host(monkeypatch, lambda: 8e6 * float(rng.random() < 1 / 6))
    with shares(20, 20) as arms:
        arms.warm_up()
        took = arms.measure(4)
        assert took["off"] < took["cpu"]
        assert took["both"] < 1.03 * took["off"]


def test_a_host_that_was_busy_is_found_out_when_it_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = [5e5]
    slow_host(monkeypatch, lambda: busy[0])
    with shares(20, 20) as arms:
        arms.warm_up()
        took = arms.measure()
        assert took["both"] < 1.05 * took["off"], "all is the device's"
        busy[0] = 0.0
        arms.measure(30)
        took = arms.measure()
        assert took["both"] < 0.8 * min(took[arm] for arm in HALVES)
        busy[0] = 5e5
        arms.measure(2)
        took = arms.measure()
        assert took["both"] < 1.05 * took["off"]
