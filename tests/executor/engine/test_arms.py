"""Every arm computes the same thing, and the plain reference forward agrees."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from executor.policies.base import PolicyOptions
from executor.reference import forward
from tests.executor.engine_runs import open_session, run_pass, unit_bytes, vram
from tests.gguf_models import model_path
from tests.support import smollm2_path

DENSE = ["llama-dense-F16", "llama-dense-Q4_0", "llama-dense-Q4_K", "llama-dense-Q8_0", "qwen3-dense-Q8_0"]
MOE = ["qwen3moe-e8k2-Q4_K", "qwen3moe-e8k2-Q8_0"]
PROMPT = [(7 * i) % 251 for i in range(96)]
SAME_DEVICE = ["off", "off-whole", "on", "gated", "full"]
# float32 on both sides, but other shapes of the same products: the last row alone, the whole prompt at once
ROUNDING = 1e-5


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest relative L2 error of a row."""
    return float(((got - want).norm(dim=-1) / want.norm(dim=-1)).max())


@pytest.mark.parametrize("name", [*DENSE, *MOE])
def test_every_arm_agrees_with_the_reference(name: str) -> None:
    path = str(model_path(name))
    with open_session(path, [*SAME_DEVICE, "cpu"], prompt=PROMPT) as session:
        runs = {arm: run_pass(session, arm, len(PROMPT)) for arm in [*SAME_DEVICE, "cpu"]}
    result, logits = runs["off"]
    assert logits is not None
    want = forward(session.model, [*PROMPT, *result.tokens[:-1]])[len(PROMPT) - 1 :]
    assert relative_error(logits, want) < ROUNDING
    assert len({runs[arm][0].logits_digest for arm in SAME_DEVICE}) == 1
    assert len({tuple(run.tokens) for run, _ in runs.values()}) == 1
    on_host = runs["cpu"][1]
    assert on_host is not None
    assert relative_error(on_host, logits) < ROUNDING


def test_tokens_are_the_likeliest() -> None:
    with open_session("tiny-dense", ["off"], layers=2) as session:
        result, logits = run_pass(session, "off", n_gen=5)
    assert logits is not None
    assert result.tokens == logits.argmax(-1).tolist()
    assert len(result.tokens) == 5


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("spec", ["tiny-dense", "tiny-moe"])
def test_any_number_of_slots(slots: int, spec: str) -> None:
    with open_session(spec, ["off", "on"], policy=PolicyOptions(slots=slots)) as session:
        off, on = run_pass(session, "off"), run_pass(session, "on")
        assert vram(session, "on")["vram_slots"] == slots * unit_bytes(session) // len(session.model.shape.layers)
    assert off[0].logits_digest == on[0].logits_digest
    assert {e.slot for e in on[0].events if e.stream == "copy"} == set(range(slots))


@pytest.mark.parametrize(("n_prompt", "n_ubatch"), [(70, 32), (33, 32), (32, 64), (1, 32)])
def test_a_shorter_last_ubatch(n_prompt: int, n_ubatch: int) -> None:
    with open_session("tiny-dense", ["off", "on", "full"], layers=3) as session:
        runs = [run_pass(session, arm, n_prompt, 3, n_ubatch)[0] for arm in ("off", "on", "full")]
    sizes = [u.n_tokens for u in runs[0].ubatches if u.phase == "prefill"]
    assert sum(sizes) == n_prompt
    assert sizes[:-1] == [n_ubatch] * (len(sizes) - 1)
    assert len({run.logits_digest for run in runs}) == 1


def test_depth_changes_the_result_and_not_the_agreement() -> None:
    with open_session("tiny-dense", ["off", "on"], layers=3) as session:
        deep = [run_pass(session, arm, 64, 3, 32, n_depth=100)[0] for arm in ("off", "on")]
        shallow = run_pass(session, "off", 64, 3, 32)[0]
    assert deep[0].logits_digest == deep[1].logits_digest
    assert deep[0].logits_digest != shallow.logits_digest
    assert [u.n_past for u in deep[0].ubatches] == [100, 132, 164, 165]


def test_generation_without_a_prompt() -> None:
    with open_session("tiny-dense", ["off", "on"], layers=2) as session:
        runs = [run_pass(session, arm, 0, 4, 32, n_depth=20)[0] for arm in ("off", "on")]
    assert runs[0].ttft_ns is None
    assert runs[0].prefill_ns is None
    assert runs[0].tokens == runs[1].tokens
    assert len(runs[0].tokens) == 4


def test_repetitions_differ_and_repeat() -> None:
    with open_session("tiny-dense", ["off"], layers=2) as session:
        digests = [run_pass(session, "off", repetition=r)[0].logits_digest for r in (0, 1, 0)]
    assert digests[0] == digests[2] != digests[1]


def test_two_devices_do_what_one_does() -> None:
    runs = {}
    for n_devices in (1, 2):
        with open_session("tiny-moe", ["off", "on"], n_devices=n_devices, synthetic_routing=True) as session:
            runs[n_devices] = [run_pass(session, arm)[0] for arm in ("off", "on")]
    digests = {run.logits_digest for group in runs.values() for run in group}
    assert len(digests) == 1
    assert {e.device for e in runs[2][1].events if e.stream == "copy"} == {0, 1}


@pytest.mark.parametrize("spec", ["tiny-dense", "qwen2.5-0.5b"])  # the second with one matrix for both ends
def test_each_device_holds_what_its_steps_read(spec: str) -> None:
    with open_session(spec, ["full"], kind="sim", layers=4, n_devices=2) as session:
        first, last = (shard.store for shard in session.shards)
        is_tied = session.model.shape.tied_embeddings
        assert "token_embd.weight" in first
        assert ("token_embd.weight" in last) == is_tied
        assert "output_norm.weight" in last
        assert "output_norm.weight" not in first
        assert "output.weight" not in first
        tensors = [*first.tensors, *last.tensors]
        assert vram(session, "full")["vram_resident"] == sum(tensor.n_bytes for tensor in tensors)


@pytest.mark.parametrize("n_devices", [1, 2, 3])
def test_what_an_arm_holds_is_told_by_device(n_devices: int) -> None:
    arms, cached = ["on", "cache", "full"], PolicyOptions(cache_bytes=16 << 20)
    more: dict[str, Any] = {"layers": 5, "n_devices": n_devices, "policy": cached, "synthetic_routing": True}
    with open_session("tiny-moe", arms, kind="sim", **more) as session:
        described = {arm["name"]: arm["effective"] for arm in session.describe_arms()}
        stores = [shard.store.n_bytes for shard in session.shards]
    if n_devices == 1:
        assert all("by_device" not in found for found in described.values())
        return
    for found in described.values():
        assert {part: sum(n_bytes) for part, n_bytes in found["by_device"].items()} == {
            part: found[part] for part in ("vram_resident", "vram_slots", "vram_bank")
        }
        assert all(len(n_bytes) == n_devices for n_bytes in found["by_device"].values())
    assert described["full"]["by_device"]["vram_resident"] == stores
    assert all(described["on"]["by_device"]["vram_slots"])
    assert all(described["cache"]["by_device"]["vram_bank"])


def test_a_slow_second_device_gets_every_ubatch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first device runs ahead, and must not overwrite rows that the second has not fetched."""
    with open_session("tiny-dense", ["off"], layers=4) as session:
        alone = run_pass(session, "off", 96, 2, 16)[0]
    with open_session("tiny-dense", ["off"], layers=4, n_devices=2) as session:
        second = session.devices[1]
        launch = second.launch

        def slow_launch(stream: Any, fn: Callable[[], None], work: Any, *args: Any, **kwargs: Any) -> None:
            launch(stream, lambda: time.sleep(0.01), work)
            launch(stream, fn, work, *args, **kwargs)

        monkeypatch.setattr(second, "launch", slow_launch)
        alike = run_pass(session, "off", 96, 2, 16)[0]
    assert alike.logits_digest == alone.logits_digest


@pytest.mark.model
def test_smollm2_arms_are_bit_identical() -> None:
    with open_session(str(smollm2_path()), ["off", "on", "full"], prompt=PROMPT, layers=10) as session:
        runs = {arm: run_pass(session, arm, len(PROMPT), 3, 64) for arm in ("off", "on", "full")}
    logits = runs["off"][1]
    assert logits is not None
    want = forward(session.model, [*PROMPT, *runs["off"][0].tokens[:-1]])[len(PROMPT) - 1 :]
    assert relative_error(logits, want) < ROUNDING
    assert len({run.logits_digest for run, _ in runs.values()}) == 1
