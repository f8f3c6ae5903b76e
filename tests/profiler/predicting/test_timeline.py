"""The timeline against the `sim` device, which runs the engine's own code: on one machine both take the same time.

Its host issues in no time, as the timeline's does. Where experts are drawn, expected counts stand against drawn ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from executor.devices.factory import DeviceOptions
from executor.devices.sim import SimMachine
from executor.errors import HprofError
from executor.passes import PassJob, PassResult
from executor.policies import arm_traits
from executor.policies.base import PolicyOptions
from executor.session import Session
from profiler.arithmetic.turns import needs_warmup
from profiler.planning.plan import RunPlan, plan_run
from profiler.planning.request import GridPoint, PlacementOptions, RunRequest, grid
from profiler.predicting.costs import RateCosts
from profiler.predicting.predictor import Prediction, predict

MACHINE = SimMachine(host_call_us=0.0)
CELLS = tuple(grid([96, 500], [4], [32, 100], [0, 700]))
HALF = r"blk\.(0|1)\.ffn_.*_exps=CPU"
IN_PART = r"blk\.0\.ffn_.*_exps=CPU;blk\.1\.ffn_up_exps=CPU"
STATELESS = ("off", "off-whole", "on", "gated", "cpu", "full")


def planned(
    model: str,
    arms: tuple[str, ...],
    n_devices: int = 1,
    n_gpu_layers: int | None = None,
    cells: tuple[GridPoint, ...] = CELLS,
    cache_bytes: int = 0,
    machine: SimMachine = MACHINE,
    overrides: str | None = None,
) -> RunPlan:
    device = DeviceOptions("sim", n_devices, machine=machine)
    options = (PlacementOptions(overrides=overrides, n_gpu_layers=n_gpu_layers),)
    policy = PolicyOptions(cache_bytes=cache_bytes)
    request = RunRequest(cells=cells, device=device, model=model, arms=arms, placements=options, policy=policy)
    return plan_run(request)


def both(plan: RunPlan) -> Iterator[tuple[Prediction, PassResult]]:
    """Each prediction, with the pass that `sim` runs; arms that learn have had the warm-ups of a run before it."""
    session = Session(plan.model, plan.setups[0].placement, plan.setups[0].arms, plan.session)
    machine = plan.request.device.machine
    assert machine is not None
    for one in predict(plan, RateCosts(machine, plan.session.dtype)):
        cell = one.cell
        size = (cell.n_prompt, cell.n_gen, cell.n_ubatch, cell.n_depth)
        learns, took = arm_traits(one.arm).learns, list[int]()
        while learns and needs_warmup(took, session.policies[one.arm].min_warmups):
            warmup = session.run_pass(PassJob(0, one.arm, *size, repetition=len(took), warmup=True))
            took.append(warmup.t_end - warmup.t_start)
        result = session.run_pass(PassJob(0, one.arm, *size, repetition=0))
        yield one, result
    session.close()


def test_dense_models_take_exactly_what_sim_takes() -> None:
    for one, seen in both(planned("tiny-dense", STATELESS)):
        assert one.ttft_ns == pytest.approx(seen.ttft_ns, rel=1e-4), one
        assert one.prefill_ns == pytest.approx(seen.prefill_ns, rel=1e-4), one
        assert one.decode_ns == pytest.approx(seen.decode_ns, rel=1e-4), one
        assert one.bytes_h2d == seen.bytes_h2d, one


@pytest.mark.parametrize("n_gpu_layers", [None, 2], ids=["experts", "whole layers"])
def test_experts_take_what_sim_takes_but_for_the_draw(n_gpu_layers: int | None) -> None:
    for one, seen in both(planned("tiny-moe", STATELESS, n_gpu_layers=n_gpu_layers)):
        assert one.ttft_ns == pytest.approx(seen.ttft_ns, rel=0.03), one
        assert one.decode_ns == pytest.approx(seen.decode_ns, rel=0.01), one
        assert one.bytes_h2d == pytest.approx(seen.bytes_h2d, rel=0.03), one


def test_hot_experts_go_ahead_as_on_sim() -> None:
    for one, seen in both(planned("tiny-moe", ("hot",))):
        assert one.bytes_h2d == pytest.approx(seen.bytes_h2d, rel=0.05), one
        assert one.ttft_ns == pytest.approx(seen.ttft_ns, rel=0.15), one


@pytest.mark.parametrize(
    ("chosen", "link_gb_s", "latency_us", "launch_us", "gemm_tflop_s", "rel"),
    [
        ("hot", 2.0, 1.0, 1.0, 0.3, 0.02),  # compute hides about half of a layer
        ("on", 25.0, 10.0, 1.0, 0.5, 0.001),  # it hides all of it, in one piece
        ("off", 2.0, 1.0, 1.0, 1e4, 0.03),  # it hides nothing
    ],
)
def test_auto_chooses_what_it_chooses_on_sim(
    chosen: str, link_gb_s: float, latency_us: float, launch_us: float, gemm_tflop_s: float, rel: float
) -> None:
    machine = replace(
        MACHINE, link_gb_s=link_gb_s, link_latency_us=latency_us, launch_us=launch_us, gemm_tflop_s=gemm_tflop_s
    )
    cells = tuple(grid([500], [4], [32, 128], [0]))
    for one, seen in both(planned("tiny-moe", ("auto",), cells=cells, machine=machine)):
        assert chosen in {ubatch.policy for ubatch in seen.ubatches}
        assert one.ttft_ns == pytest.approx(seen.ttft_ns, rel=rel), one
        assert one.decode_ns == pytest.approx(seen.decode_ns, rel=0.01), one


def test_shared_experts_take_what_sim_takes_once_both_sides_are_known() -> None:
    """But for the layers in which the arm looks at another division than the best."""
    cells = tuple(grid([96], [16], [100], [0]))
    for one, seen in both(planned("tiny-moe", ("both",), cells=cells)):
        assert one.decode_ns == pytest.approx(seen.decode_ns, rel=0.01), one
        assert one.ttft_ns == pytest.approx(seen.ttft_ns, rel=0.12), one


def test_a_prompts_experts_are_divided_by_their_rows_where_no_token_told_of_their_popularity() -> None:
    """All that is not dead is used by every ubatch of a prompt, so that how often it was says nothing."""
    cells = tuple(grid([500], [0], [100], [0]))
    for one, seen in both(planned("tiny-moe", ("both",), cells=cells)):
        assert one.ttft_ns == pytest.approx(seen.ttft_ns, rel=0.06), one


@pytest.mark.parametrize(("arm", "misses", "copied"), [("cache", 0.08, 0.05), ("both+cache", 0.15, 0.08)])
def test_a_bank_serves_tokens_and_is_read_by_prompts(arm: str, misses: float, copied: float) -> None:
    """With `both+cache`, what is missing follows from what is uploaded, which follows from how many are missing."""
    cells = tuple(grid([1024], [24], [1024], [0]))
    for one, seen in both(planned("tiny-moe", (arm,), cells=cells, cache_bytes=2 << 20)):
        assert one.decode_ns == pytest.approx(seen.decode_ns, rel=misses), one
        assert one.ttft_ns == pytest.approx(seen.ttft_ns, rel=0.05), one
        assert one.bytes_h2d == pytest.approx(seen.bytes_h2d, rel=copied), one


@pytest.mark.parametrize("overrides", [HALF, IN_PART], ids=["half of the layers", "one in part"])
def test_what_is_resident_takes_no_place_in_a_bank(overrides: str) -> None:
    cells = tuple(grid([256], [120], [256], [0]))
    for one, seen in both(planned("tiny-moe", ("cache",), cells=cells, cache_bytes=1 << 20, overrides=overrides)):
        assert one.decode_ns == pytest.approx(seen.decode_ns, rel=0.05), one
        assert one.bytes_h2d == pytest.approx(seen.bytes_h2d, rel=0.05), one
        assert one.vram["vram_bank"] == seen.vram_bank, one


def test_a_bank_too_small_for_a_token_is_refused_as_by_a_run() -> None:
    plan = planned("tiny-moe", ("cache",), cells=tuple(grid([96], [4], [32], [0])), cache_bytes=1 << 10)
    refusals = []
    for open_it in (lambda: list(predict(plan, RateCosts(MACHINE, plan.session.dtype))), lambda: list(both(plan))):
        with pytest.raises(HprofError, match="one token needs") as refusal:
            open_it()
        refusals.append(str(refusal.value))
    assert refusals[0] == refusals[1]


def test_a_layer_in_part_takes_what_sim_takes() -> None:
    """Its tensors that stay on the device are not copied; the CPU, where it computes, computes all of it."""
    cells = tuple(grid([96, 500], [4], [32, 100], [0]))
    for one, seen in both(planned("tiny-moe", STATELESS, cells=cells, overrides=IN_PART)):
        assert one.ttft_ns == pytest.approx(seen.ttft_ns, rel=0.03), one
        assert one.decode_ns == pytest.approx(seen.decode_ns, rel=0.01), one
        assert one.bytes_h2d == pytest.approx(seen.bytes_h2d, rel=0.05), one


def test_a_layer_in_part_is_divided_by_what_is_copied_of_it() -> None:
    """Of two layers with the same experts, the one that copies less of each gives the CPU fewer."""
    machine = replace(MACHINE, link_gb_s=5.0, link_latency_us=0.1, host_memory_gb_s=20.0)
    cells = tuple(grid([96], [16], [100], [0]))
    times = []
    for overrides in (r"blk\.(0|1)\.ffn_.*_exps=CPU", r"blk\.(0|1)\.ffn_up_exps=CPU", IN_PART):
        for one, seen in both(planned("tiny-moe", ("both",), cells=cells, machine=machine, overrides=overrides)):
            assert one.decode_ns == pytest.approx(seen.decode_ns, rel=0.03), one
            times.append(one.decode_ns)
    whole, thin, in_part = times
    assert whole is not None
    assert thin is not None
    assert in_part == pytest.approx((whole + thin) / 2, rel=1e-3)


def test_a_bank_that_no_token_fills_holds_nothing_for_prompts() -> None:
    cells = tuple(grid([1024], [0], [1024], [0]))
    for one, seen in both(planned("tiny-moe", ("cache",), cells=cells, cache_bytes=2 << 20)):
        assert one.ttft_ns == pytest.approx(seen.ttft_ns, rel=0.05)
        assert one.bytes_h2d == pytest.approx(seen.bytes_h2d, rel=0.05)


def test_two_devices_have_a_link_each() -> None:
    for one, seen in both(planned("tiny-moe", ("off", "on", "full"), n_devices=2)):
        assert one.ttft_ns == pytest.approx(seen.ttft_ns, rel=0.03), one
        assert one.decode_ns == pytest.approx(seen.decode_ns, rel=0.03), one


def test_memory_is_what_a_session_reserves() -> None:
    plan = planned("tiny-moe", ("off", "on", "full"))
    seen = {one.arm: result for one, result in both(plan)}
    for one in predict(plan, RateCosts(MACHINE, plan.session.dtype)):
        assert one.vram["vram_resident"] == seen[one.arm].vram_resident
        assert one.vram["vram_slots"] == seen[one.arm].vram_slots
