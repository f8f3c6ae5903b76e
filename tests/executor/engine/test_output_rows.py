"""Rows whose logits nobody wants stop behind the last layer's mixer, as in llama.cpp."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from executor.models.architectures import ARCHITECTURES
from executor.models.load import load_model
from executor.output_rows import behind_mixer, drops_rows
from executor.passes import PassJob, PassResult, Ubatch
from executor.policies.base import PolicyOptions
from executor.reference import forward
from tests.executor.engine.test_replayed import Repeating
from tests.executor.engine_runs import open_session, run_pass, unit_bytes, weight_bytes

LAYERS, LAST = 3, 2
N_PROMPT, N_UBATCH = 100, 48  # ubatches of 48, 48 and 4 tokens
ON_DEVICE = PolicyOptions(op_offload_min_batch=1, cache_bytes=1 << 20)
STEPS = {"tiny-dense": {"ffn"}, "tiny-moe": {"router", "experts"}}


def tokens_behind_mixer(result: PassResult, layer: int) -> dict[tuple[int, str], int | None]:
    """(ubatch, step) -> tokens, of the steps behind a layer's mixer."""
    steps = [e for e in result.events if e.layer == layer and e.kind in ("compute", "cpu_compute")]
    return {(e.ubatch, e.name): e.n_tokens for e in steps if e.name != "attn"}


@pytest.mark.parametrize("spec", STEPS)
@pytest.mark.parametrize("kind", ["cpu", "sim"])
def test_of_a_prompt_one_row_goes_through_the_last_layers_ffn(spec: str, kind: str) -> None:
    with open_session(spec, ["on"], kind=kind, layers=LAYERS, synthetic_routing="moe" in spec) as session:
        result, _ = run_pass(session, "on", N_PROMPT, 3, N_UBATCH)
        per_layer = unit_bytes(session) // LAYERS
    whole = {(number, step): n for number, n in ((0, 48), (1, 48), (2, 4), (3, 1), (4, 1)) for step in STEPS[spec]}
    left = {(number, step): 1 for number in (2, 3, 4) for step in STEPS[spec]}
    assert tokens_behind_mixer(result, 0) == whole
    assert tokens_behind_mixer(result, LAST) == left
    mixed = [(e.ubatch, e.n_tokens) for e in result.events if e.layer == LAST and e.name == "attn"]
    assert mixed == [(0, 48), (1, 48), (2, 4), (3, 1), (4, 1)]  # its keys and values are those of all tokens
    assert weight_bytes(result) == 2 * (LAYERS - 1) * per_layer


@pytest.mark.parametrize("arm", ["off", "on", "cpu", "full"])
def test_that_row_falls_under_the_offload_threshold(arm: str) -> None:
    for least, on_host in ((32, arm != "full"), (1, arm == "cpu")):
        with open_session("tiny-dense", [arm], layers=LAYERS, policy=PolicyOptions(op_offload_min_batch=least)) as s:
            result, _ = run_pass(s, arm, 96, 0, 48)
        [(kind, stream)] = [(e.kind, e.stream) for e in result.events if e.layer == LAST and e.name == "ffn"]
        assert (kind, stream) == (("cpu_compute", "host") if on_host else ("compute", "compute"))


@pytest.mark.parametrize("spec", STEPS)
def test_all_logits_are_those_of_the_plain_forward(spec: str) -> None:
    with open_session(spec, ["off", "on"], layers=LAYERS, policy=ON_DEVICE) as session:
        runs = {arm: run_pass(session, arm, N_PROMPT, 3, N_UBATCH, all_logits=True) for arm in ("off", "on")}
        _, last = run_pass(session, "on", N_PROMPT, 3, N_UBATCH)
        prompt = session._placed.prompt_ids(0, N_PROMPT).tolist()
        result, found = runs["on"]
        want = forward(session.model, [*prompt, *result.tokens[:-1]])
    assert found is not None
    assert last is not None
    assert runs["off"][0].logits_digest == result.logits_digest
    torch.testing.assert_close(found, want, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(last, want[N_PROMPT - 1 :], rtol=1e-3, atol=1e-3)
    assert set(tokens_behind_mixer(result, LAST)) == set(tokens_behind_mixer(result, 0))


@pytest.mark.parametrize("replays", [False, True])
def test_a_synthetic_router_chooses_for_the_row_that_is_left(replays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording of the router for one token serves it too: where its rows begin is read from the device."""
    if replays:
        Repeating().install(monkeypatch)
    options: dict[str, Any] = {"layers": LAYERS, "dtype": torch.bfloat16, "policy": ON_DEVICE}
    with open_session("tiny-moe", ["off"], synthetic_routing=True, **options) as session:
        result, _ = run_pass(session, "off", N_PROMPT, 3, N_UBATCH)
        routing = session.options.routing
        assert routing is not None
        last = [record for record in result.experts if record.layer == LAST]
        for record, position in zip(last, (N_PROMPT - 1, N_PROMPT, N_PROMPT + 1), strict=True):
            assert record.n_tokens == 1
            assert set(np.flatnonzero(record.flags())) == set(routing.ids(LAST, position, 1)[0].tolist())


@pytest.mark.parametrize("kind", ["cpu", "sim"])
def test_a_device_with_the_output_alone_is_brought_what_is_left(kind: str) -> None:
    with open_session("tiny-dense", ["on"], kind=kind, n_devices=3, layers=2) as session:
        assert list(session._placed.shard_of) == [0, 1, 2]
        result, _ = run_pass(session, "on", 96, 2, 48)
    moved = [e for e in result.events if e.name == "copy activations" and e.layer is None and e.kind == "h2d"]
    assert [(e.device, e.ubatch, e.n_tokens) for e in moved] == [
        (1, 0, 48),
        (1, 1, 48),
        (2, 1, 1),
        (1, 2, 1),
        (2, 2, 1),
    ]
    for ubatch in result.ubatches:
        assert ubatch.t_end >= max(e.t_end for e in result.events if e.ubatch == ubatch.ubatch and e.kind == "compute")


@pytest.mark.parametrize("spec", ["gpt-oss-20b", "qwen3.5-27b", "qwen3.6-35b-a3b", "deepseek-v4-flash"])
def test_some_architectures_keep_all_rows(spec: str) -> None:
    shape = load_model(spec, layers=2).shape
    assert not drops_rows(shape)
    ubatch = Ubatch(0, "prefill", 48, 0, n_outputs=0)
    assert behind_mixer(shape, 1, ubatch) == ubatch


def test_the_others_drop_them_behind_the_last_mixer() -> None:
    shape = load_model("tiny-dense", layers=2).shape
    first, last = PassJob(0, "on", 64, 0, 48, n_depth=100, repetition=0).ubatches()
    assert behind_mixer(shape, 0, first) == first
    assert behind_mixer(shape, 1, first) is None
    assert behind_mixer(shape, 1, last) == Ubatch(1, "prefill", 1, 163, n_outputs=1)
    assert behind_mixer(replace(shape, keeps_rows=True), 1, first) == first
    kept = {name for name in ARCHITECTURES if not drops_rows(replace(shape, architecture=name))}
    assert kept == {"gpt-oss", "qwen3next", "qwen35", "qwen35moe"}
