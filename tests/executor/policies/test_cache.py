"""The cache arm and its combinations, and the two cases of what must not be prefetched.

The rule (llama.cpp's commit 3bce8bd50): a copy ahead may take only what is complete before the previous unit
starts, so never the bank, which the router's choice makes somebody write later; and the cache is left alone
where its device cannot compute with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import pytest
import torch

from executor.devices.base import CopyRange, Device
from executor.devices.cpu import CpuDevice
from executor.errors import HprofError
from executor.passes import ExpertsRecord, PassResult
from executor.policies import arm_names, make_policy
from executor.policies.base import FROM_BANK, Plan, PolicyOptions
from executor.policies.cache import MAX_BATCH
from executor.session import Session, arms
from executor.session import session as session_module
from tests.executor.engine_runs import open_session, run_pass, unit_bytes, vram, weight_bytes
from tests.executor.policies.made_up import dense_item, flags, measured, moe_item, ubatch, unit
from tests.gguf_models import model_path

MIB = 1 << 20
ON_DEVICE = partial(PolicyOptions, op_offload_min_batch=1)
N_LAYERS, N_EXPERTS = 3, 32


def moe_session(arms: Sequence[str], cache_mib: int = 4, **options: Any) -> Any:
    """Three layers of tiny-moe (10.1 MiB of experts), with a bank."""
    policy = ON_DEVICE(cache_bytes=cache_mib * MIB, cache_policy=options.pop("eviction", "lru"))
    return open_session("tiny-moe", arms, layers=N_LAYERS, policy=policy, **{"synthetic_routing": True, **options})


# What it decides


@pytest.mark.parametrize("arm", ["cache", "off+cache", "on+cache", "hot+cache", "auto+cache", "gated+cache"])
def test_small_batches_come_from_the_bank_and_large_ones_from_the_arm_inside(arm: str) -> None:
    options = PolicyOptions(cache_bytes=1, gate_min_batch=33)
    policy = make_policy(arm, options)
    inner = make_policy("off" if arm == "cache" else arm.removesuffix("+cache"), options)
    assert [policy.plan(moe_item(n)) for n in (1, MAX_BATCH)] == [FROM_BANK, FROM_BANK]
    assert policy.plan(moe_item(MAX_BATCH + 1)) == inner.plan(moe_item(MAX_BATCH + 1))
    assert policy.plan(dense_item(1)) == inner.plan(dense_item(1))
    assert [policy.describe(ubatch(n)) for n in (1, 32, 33)] == ["cache", "cache", inner.describe(ubatch(33))]
    assert (policy.n_slots, policy.min_warmups) == (inner.n_slots, inner.min_warmups)
    assert policy.cache_bytes == 1


def test_small_batches_of_experts_are_computed_on_the_device_and_others_are_not() -> None:
    policy = make_policy("cache", PolicyOptions(cache_bytes=1, op_offload_min_batch=64))
    assert [policy.regime(n, unit()) for n in (1, 32, 33, 64)] == ["stream", "stream", "cpu", "stream"]
    assert policy.regime(1, unit(n_experts=0)) == "cpu"


def test_the_arm_inside_learns_from_what_the_bank_serves() -> None:
    policy: Any = make_policy("hot+cache", PolicyOptions(cache_bytes=1))
    policy.observe(moe_item(1), flags(3))
    policy.learn(measured(compute_ns=0))
    plan = policy.plan(moe_item(64))
    assert plan.hot is not None
    assert plan.hot.nonzero()[0].tolist() == [3]


@pytest.mark.parametrize("arm", [arm for arm in arm_names() if "cache" in arm])
def test_a_cache_without_a_size_is_refused(arm: str) -> None:
    with pytest.raises(HprofError, match=rf"arm '{arm.replace('+', '.')}' needs --moe-cache-mib N"):
        make_policy(arm, PolicyOptions())


# What it does


def test_decode_is_served_from_the_bank_and_only_misses_cross_the_bus() -> None:
    with moe_session(["cache"], cache_mib=16) as session:
        result, _ = run_pass(session, "cache", 0, 12, n_depth=8)
        expert_bytes = unit_bytes(session) // (N_LAYERS * N_EXPERTS)
        assert vram(session, "cache")["vram_bank"] == unit_bytes(session) < 16 * MIB
    assert weight_bytes(result) == sum(r.misses or 0 for r in result.experts) * expert_bytes
    seen: dict[int, set[int]] = {}
    for record in result.experts:
        used = _used(record)
        known = seen.setdefault(record.layer, set())
        assert (record.hits, record.misses) == (len(used & known), len(used - known))  # the bank holds everything
        assert record.copied == record.misses
        known |= used
    assert {u.policy for u in result.ubatches} == {"cache"}


def _used(record: ExpertsRecord) -> set[int]:
    bits = int.from_bytes(record.used, "little")
    return {expert for expert in range(record.n_experts) if bits >> expert & 1}


def test_the_bank_stays_warm_from_pass_to_pass() -> None:
    with moe_session(["cache"], cache_mib=16) as session:
        first, second = (run_pass(session, "cache", 0, 6, n_depth=8)[0] for _ in range(2))
    assert weight_bytes(first) > weight_bytes(second) == 0
    assert all(record.misses == 0 for record in second.experts)
    assert first.logits_digest == second.logits_digest


def test_large_batches_read_the_bank_and_leave_it_as_it_is() -> None:
    with moe_session(["cache", "off"]) as session:
        run_pass(session, "cache", 0, 6, n_depth=8)
        before = _cached(session)
        result, _ = run_pass(session, "cache", 96, 0, 48, repetition=1, all_logits=True)
        off, _ = run_pass(session, "off", 96, 0, 48, repetition=1, all_logits=True)
        assert _cached(session) == before
        expert_bytes = unit_bytes(session) // (N_LAYERS * N_EXPERTS)
    assert result.logits_digest == off.logits_digest
    hits = [len(_used(r) & before[r.layer].keys()) for r in result.experts]
    assert [r.hits for r in result.experts] == hits
    assert [r.misses for r in result.experts] == [r.copied for r in result.experts]
    assert sum(hits) > 0
    moved_inside = sum(e.bytes or 0 for e in result.events if e.kind == "d2d")
    assert moved_inside == sum(hits) * expert_bytes == weight_bytes(off) - weight_bytes(result)


def _cached(session: Session, arm: str = "cache") -> dict[int, dict[int, int]]:
    """What the arm's bank holds: layer -> expert -> place."""
    [streamer] = session._arms[arm].streamers
    bank = next(iter(streamer._banks.values()))
    return {layer: bank.cache.lookup(layer, range(N_EXPERTS)) for layer in range(N_LAYERS)}


def test_a_batch_whose_experts_all_lie_in_the_bank_copies_none() -> None:
    with moe_session(["cache"], cache_mib=16, kind="sim") as session:
        for repetition in range(8):  # ubatches of 32: soon every expert that lives was used
            run_pass(session, "cache", 96, 0, 32, repetition=repetition, all_logits=True)
        result, _ = run_pass(session, "cache", 48, 0, 48, repetition=1, all_logits=True)
    assert weight_bytes(result) == 0
    assert [(r.copied, r.hits, r.misses) for r in result.experts] == [(0, r.distinct, 0) for r in result.experts]


def test_a_batch_larger_than_the_bank_is_copied_like_without_one() -> None:
    with moe_session(["cache", "off"], cache_mib=1) as session:  # 9 places; 32 tokens use about 20
        cache, off = (run_pass(session, arm, 32, 0, 32)[0] for arm in ("cache", "off"))
    assert cache.logits_digest == off.logits_digest
    assert weight_bytes(cache) == weight_bytes(off) > 0


@pytest.mark.parametrize("eviction", ["lru", "frequency"])
@pytest.mark.parametrize("load_mode", ["none", "register"])
def test_either_order_and_any_layout_of_host_memory_give_the_same_logits(eviction: str, load_mode: str) -> None:
    path = str(model_path("qwen3moe-e8k2-Q4_K"))
    policy = ON_DEVICE(cache_bytes=MIB // 2, cache_policy="lru" if eviction == "lru" else "frequency")
    with open_session(path, ["off", "cache", "hot+cache"], policy=policy, load_mode=load_mode) as session:
        assert session.load_mode == load_mode
        runs = [run_pass(session, arm, 48, 6, 40)[0] for arm in ("off", "cache", "cache", "hot+cache", "hot+cache")]
    assert len({run.logits_digest for run in runs}) == 1
    assert sum(record.misses or 0 for record in runs[1].experts) > 0
    assert sum(record.hits or 0 for record in runs[1].experts) > 0


@pytest.mark.parametrize("arm", ["cache", "hot+cache"])
def test_the_sim_device_decides_the_same_in_a_first_pass(arm: str) -> None:
    made = []
    for kind in ("cpu", "sim"):
        with moe_session([arm], kind=kind) as session:
            result, _ = run_pass(session, arm, 80, 4, 48)
        experts = [(r.ubatch, r.layer, r.copied, r.hits, r.misses) for r in result.experts]
        made.append((experts, weight_bytes(result), result.bytes_h2d))
    assert made[0] == made[1]


# What must not be prefetched


@pytest.mark.parametrize("what", ["whole", "selective", "bank"])
def test_a_plan_cannot_send_the_bank_ahead(what: Literal["whole", "selective", "bank"]) -> None:
    if what == "bank":
        with pytest.raises(ValueError, match="bank cannot be copied ahead"):
            Plan("ahead", what)
    else:
        assert Plan("ahead", what).when == "ahead"
    assert Plan("inline", what).what == what


def test_no_copy_ahead_touches_the_bank_in_a_recorded_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """hot+cache, with prefill and decode: each copy is seen with its stream and the addresses that it writes."""
    copied: list[tuple[str, int, int]] = []
    copy_in = CpuDevice.copy_in

    def spying(device: CpuDevice, stream: Any, ranges: Sequence[CopyRange]) -> None:
        copied.extend((stream, piece.target.data_ptr() + piece.target_from, piece.n_bytes) for piece in ranges)
        copy_in(device, stream, ranges)

    monkeypatch.setattr(CpuDevice, "copy_in", spying)
    with moe_session(["hot+cache"]) as session:
        results = [run_pass(session, "hot+cache", 128, 4, 48)[0] for _ in range(2)]  # 48, 48, 32, then 1 a token
        [streamer] = session._arms["hot+cache"].streamers
        banks = {id(bank): bank.buffer for bank in streamer._banks.values()}
        slots = [slot.buffer for kind in streamer._rotation.slots.values() for slot in kind]
    into_bank = {s for s, at, n in copied if any(_within(at, n, bank) for bank in banks.values())}
    into_slots = {s for s, at, n in copied if any(_within(at, n, slot) for slot in slots)}
    assert into_bank == {"compute"}  # the stream that reads it
    assert into_slots == {"copy"}
    assert {"copy hot", "copy missing", "copy missed"} <= {event.name for result in results for event in result.events}
    _assert_bank_copies_are_in_line(results[1])


def _within(at: int, n_bytes: int, buffer: torch.Tensor) -> bool:
    return at < buffer.data_ptr() + buffer.numel() and buffer.data_ptr() < at + n_bytes


def _assert_bank_copies_are_in_line(result: PassResult) -> None:
    """An upload to the bank starts after its own router, and no experts' step runs meanwhile."""
    routed = {(e.ubatch, e.layer): e.t_end for e in result.events if e.name == "router"}
    steps = [e for e in result.events if e.name == "experts"]
    uploads = [e for e in result.events if e.name == "copy missed"]
    assert uploads
    for upload in uploads:
        assert upload.t_start >= routed[upload.ubatch, upload.layer]
        assert not any(step.t_start < upload.t_end and upload.t_start < step.t_end for step in steps)


def test_the_cache_is_refused_where_the_device_has_no_kernel_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU without Triton: the product with cached experts would copy the whole bank each ubatch."""

    class Gpu(CpuDevice):
        kind = "cuda"  # type: ignore[assignment]

    def one_gpu(options: Any) -> list[Device]:
        return [Gpu(n_threads=1)]

    monkeypatch.setattr(session_module, "make_devices", one_gpu)
    monkeypatch.setattr(arms, "has_triton", lambda: False)
    with (
        pytest.raises(HprofError, match=r"arm 'hot\+cache' is refused.*no kernel.*cached experts.*install triton"),
        moe_session(["off", "hot+cache"]),
    ):
        pass
    monkeypatch.setattr(arms, "has_triton", lambda: True)
    with moe_session(["off", "hot+cache"]) as session:
        assert vram(session, "hot+cache")["vram_bank"] > 0


def test_dense_models_have_nothing_to_cache() -> None:
    policy = PolicyOptions(cache_bytes=MIB)
    with open_session("tiny-dense", ["off", "cache"], kind="sim", layers=2, policy=policy) as session:
        off, cache = (run_pass(session, arm, 64, 2, 32)[0] for arm in ("off", "cache"))
        assert vram(session, "cache")["vram_bank"] == 0
    assert off.bytes_h2d == cache.bytes_h2d
