"""What crosses the bus, to the byte, on the cpu device and on the simulated one."""

from __future__ import annotations

import pytest

from executor.policies.base import PolicyOptions
from tests.executor.engine_runs import copies, open_session, run_pass, unit_bytes, vram, weight_bytes
from tests.support import smollm2_path

LAYERS = 3
TINY_FFN_BYTES = 3 * 1536 * 512 // 32 * 34  # gate, up and down of one tiny-dense layer in Q8_0
ACTIVATION_BYTES = 512 * 4  # one float32 row of the hidden size


@pytest.mark.parametrize("arm", ["off", "off-whole", "on", "gated"])
@pytest.mark.parametrize(("n_prompt", "n_ubatch", "n_ubatches"), [(96, 32, 3), (128, 64, 2), (100, 64, 2)])
def test_dense_prefill_moves_the_ffn_once_a_ubatch(arm: str, n_prompt: int, n_ubatch: int, n_ubatches: int) -> None:
    with open_session("tiny-dense", [arm], layers=LAYERS) as session:
        assert unit_bytes(session) == LAYERS * TINY_FFN_BYTES
        result, _ = run_pass(session, arm, n_prompt, 0, n_ubatch, all_logits=True)
    assert weight_bytes(result) == result.bytes_h2d == n_ubatches * LAYERS * TINY_FFN_BYTES


def test_below_the_threshold_activations_move_instead() -> None:
    with open_session("tiny-dense", ["on"], layers=LAYERS) as session:
        result, _ = run_pass(session, "on", 31 + 32, 5, 32, all_logits=True)
    assert weight_bytes(result) == LAYERS * TINY_FFN_BYTES  # the second ubatch has 31 tokens
    assert result.bytes_h2d == LAYERS * TINY_FFN_BYTES + LAYERS * ACTIVATION_BYTES * (31 + 4)


def test_a_threshold_of_zero_streams_always() -> None:
    with open_session("tiny-dense", ["off", "on"], layers=LAYERS, policy=PolicyOptions(op_offload_min_batch=0)) as s:
        results = [run_pass(s, arm, 40, 4, 32, all_logits=True)[0] for arm in ("off", "on")]
    assert [r.bytes_h2d for r in results] == [(2 + 3) * LAYERS * TINY_FFN_BYTES] * 2
    assert results[0].logits_digest == results[1].logits_digest


def test_the_cpu_and_full_arms_stream_nothing() -> None:
    with open_session("tiny-dense", ["cpu", "full"], layers=LAYERS) as session:
        on_host, resident = (run_pass(session, arm, 64, 3, 32, all_logits=True)[0] for arm in ("cpu", "full"))
    assert weight_bytes(on_host) == 0
    assert on_host.bytes_h2d == LAYERS * ACTIVATION_BYTES * (64 + 2)
    assert resident.bytes_h2d == 0
    assert {e.kind for e in resident.events} == {"compute"}


@pytest.mark.parametrize("n_ubatch", [32, 96])
def test_a_selective_copy_moves_the_experts_in_use(n_ubatch: int) -> None:
    with open_session("tiny-moe", ["off", "on"], synthetic_routing=True) as session:
        off, on = (run_pass(session, arm, 96, 0, n_ubatch, all_logits=True)[0] for arm in ("off", "on"))
        expert_bytes = unit_bytes(session) // (len(session.model.shape.layers) * 32)
    distinct = {(r.ubatch, r.layer): r.distinct for r in off.experts}
    assert all(r.copied == r.distinct < r.n_experts for r in off.experts)
    assert weight_bytes(off) == sum(distinct.values()) * expert_bytes
    assert weight_bytes(on) == sum(r.n_experts for r in on.experts) * expert_bytes
    assert all(r.copied == r.n_experts for r in on.experts)
    assert {(r.ubatch, r.layer): r.used for r in off.experts} == {(r.ubatch, r.layer): r.used for r in on.experts}
    assert sum(e.whole_bytes or 0 for e in copies(off)) == weight_bytes(on)


def test_the_gate_opens_at_its_batch() -> None:
    policy = PolicyOptions(gate_min_batch=64)
    with open_session("tiny-moe", ["gated", "off"], policy=policy, synthetic_routing=True) as session:
        gated, off = (run_pass(session, arm, 64 + 63, 0, 64)[0] for arm in ("gated", "off"))
    assert [u.policy for u in gated.ubatches] == ["on", "off"]
    per_ubatch = [
        [sum(e.bytes or 0 for e in copies(r) if e.ubatch == number) for number in (0, 1)] for r in (gated, off)
    ]
    assert per_ubatch[0][0] > per_ubatch[1][0]  # whole against selective
    assert per_ubatch[0][1] == per_ubatch[1][1]
    assert gated.logits_digest == off.logits_digest


@pytest.mark.parametrize("spec", ["tiny-dense", "tiny-moe"])
@pytest.mark.parametrize("n_devices", [1, 2])
def test_the_sim_device_makes_the_same_copies(spec: str, n_devices: int) -> None:
    arms = ["off", "off-whole", "on", "gated", "cpu", "full"]
    made, totals = {}, {}
    for kind in ("cpu", "sim"):
        is_moe = spec == "tiny-moe"
        with open_session(spec, arms, kind=kind, n_devices=n_devices, synthetic_routing=is_moe, layers=3) as session:
            results = [run_pass(session, arm, 80, 3, 32)[0] for arm in arms]
        made[kind] = [
            [(e.ubatch, e.layer, e.tensor, e.bytes, e.n_experts, e.slot, e.device, e.stream) for e in copies(r)]
            for r in results
        ]
        totals[kind] = [r.bytes_h2d for r in results]
    assert made["cpu"] == made["sim"]
    assert totals["cpu"] == totals["sim"]
    assert len(made["cpu"][0]) > 0


def test_reported_memory_adds_up() -> None:
    with open_session("tiny-dense", ["off", "on", "full"], layers=LAYERS) as session:
        held = {arm: vram(session, arm) for arm in ("off", "on", "full")}
        n_bytes = session.model.n_bytes
    assert held["off"]["vram_resident"] + LAYERS * TINY_FFN_BYTES == n_bytes == held["full"]["vram_resident"]
    assert [held[arm]["vram_slots"] for arm in ("off", "on", "full")] == [TINY_FFN_BYTES, 2 * TINY_FFN_BYTES, 0]


def test_prefetch_from_mapped_memory_becomes_prefetch_from_copied_memory() -> None:
    with open_session("tiny-dense", ["off", "on"], layers=1, load_mode="mmap") as session:
        assert session.load_mode == "none"
        [warning] = session.warnings
        assert "--load-mode mmap" in warning
        assert "copied host memory" in warning
        assert session.describe_arms()[1]["requested"]["load_mode"] == "mmap"
    with open_session("tiny-dense", ["off"], layers=1, load_mode="mmap") as session:
        assert session.load_mode == "mmap"
        assert session.warnings == []


@pytest.mark.model
@pytest.mark.parametrize("load_mode", ["none", "mmap"])
def test_smollm2_moves_its_ffn_bytes(load_mode: str) -> None:
    """`-ot "ffn_(gate|up|down).*=CPU" -p 128 -ub 64`: each of two ubatches has every FFN weight once with all logits.

    Without, as in llama.cpp, the last layer's FFN has no row in the first ubatch and one, on the host, in the last.
    """
    layers = 4
    ffn_bytes = layers * 3 * 1536 * 576 // 32 * 20  # Q4_1: 20 bytes for 32 weights
    with open_session(str(smollm2_path()), ["off"], layers=layers, load_mode=load_mode) as session:
        whole, _ = run_pass(session, "off", 128, 0, 64, all_logits=True)
        result, _ = run_pass(session, "off", 128, 0, 64)
    assert weight_bytes(whole) == 2 * ffn_bytes
    assert weight_bytes(result) == 2 * ffn_bytes * (layers - 1) // layers
