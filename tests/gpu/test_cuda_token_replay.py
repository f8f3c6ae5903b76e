"""Decoded tokens as one CUDA graph each: bit for bit what steps give, times that fit, little work for the host."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from executor.devices.factory import DeviceOptions
from executor.layers.one_token import attention_serves
from executor.model import AttentionShape
from executor.models.load import load_model
from executor.passes import PassJob, PassResult
from executor.placement.place import place
from executor.policies.base import PolicyOptions
from executor.session import Session, SessionOptions
from executor.triton_support import has_triton
from tests.executor.engine_runs import routing_of

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
    pytest.mark.skipif(not has_triton(), reason="no Triton, or no C compiler"),
]
TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
DEPTH, N_GEN = 230, 40  # the cache's 256 rows are outgrown on the way


def session(spec: str, arms: list[str], n_devices: int = 1, quant: str | None = None, **options: Any) -> Session:
    model = load_model(spec, quant=quant)
    settings = SessionOptions(
        DeviceOptions("cuda", n_devices=n_devices),
        max_positions=DEPTH + N_GEN + 8,
        max_ubatch=8,
        max_ubatches=N_GEN + 1,
        dtype=torch.bfloat16,
        policy=PolicyOptions(op_offload_min_batch=1),  # everything is computed on the device
        **options,
    )
    return Session(model, place(model.tensors), arms, settings)


def passes(opened: Session, arm: str, n: int, *, record: bool = True) -> list[PassResult]:
    return [opened.run_pass(PassJob(0, arm, 8, N_GEN, 8, DEPTH, number % 2), record=record) for number in range(n)]


@pytest.mark.parametrize("n_devices", [1, pytest.param(2, marks=TWO_GPUS)])
@pytest.mark.parametrize("routed", [False, True])
@pytest.mark.parametrize("spec", ["tiny-dense", "tiny-moe"])
def test_as_step_by_step(spec: str, routed: bool, n_devices: int) -> None:
    if routed and spec == "tiny-dense":
        pytest.skip("nothing is routed")
    routing = routing_of(load_model(spec), "lognormal") if routed else None
    opened = session(spec, ["on", "full"], n_devices, routing=routing)
    try:
        stepwise, replayed = passes(opened, "on", 4), passes(opened, "full", 4)
        bare = passes(opened, "full", 2, record=False)
    finally:
        opened.close()
    assert [result.logits_digest for result in replayed] == [result.logits_digest for result in stepwise]
    assert [result.tokens for result in replayed] == [result.tokens for result in stepwise]
    assert [result.logits_digest for result in bare] == [result.logits_digest for result in stepwise[:2]]
    assert [result.experts and result.experts[-1].used for result in replayed] == [
        result.experts and result.experts[-1].used for result in stepwise
    ]


# beyond what one token's attention kernel has registers for; heads that no power of two is as wide as
ODD_HEADS = {
    "5120 numbers a key": {"num_attention_heads": 40, "num_key_value_heads": 2, "head_dim": 256},
    "80 wide": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 80},
}


@pytest.mark.parametrize("heads", ODD_HEADS)
def test_heads_that_the_fused_attention_does_not_serve(heads: str, tmp_path: Path) -> None:
    """PyTorch's operations are recorded in its place; logits of 4,098 tokens, whose rows nothing aligns by itself."""
    config = {
        "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
        "vocab_size": 4098, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | ODD_HEADS[heads]))
    shape = load_model(str(path)).shape.layers[0].mixer
    assert isinstance(shape, AttentionShape)
    queries = torch.zeros(1, shape.n_heads, shape.head_dim, dtype=torch.bfloat16, device="cuda")
    assert not attention_serves(queries, shape)
    opened = session(str(path), ["on", "full"], quant="Q8_0")
    try:
        stepwise, replayed = passes(opened, "on", 3), passes(opened, "full", 3)
    finally:
        opened.close()
    assert [result.logits_digest for result in replayed] == [result.logits_digest for result in stepwise]
    assert [result.tokens for result in replayed] == [result.tokens for result in stepwise]


def test_steps_follow_each_other_inside_their_pass() -> None:
    opened = session("tiny-moe", ["full"])
    try:
        result = passes(opened, "full", 3)[-1]
    finally:
        opened.close()
    decoded = [event for event in result.events if event.phase == "decode"]
    slack_ns = 20_000  # the pass's zero on the GPU's clock is found between two events
    for event, after in pairwise(decoded):
        assert event.t_start <= event.t_end
        assert event.t_end <= after.t_start + slack_ns
    assert decoded[0].t_start >= max(e.t_end for e in result.events if e.phase == "prefill") - slack_ns
    assert max(event.t_end for event in decoded) <= result.t_end + slack_ns
    n_steps = {u.ubatch: sum(e.ubatch == u.ubatch for e in decoded) for u in result.ubatches if u.phase == "decode"}
    assert len(set(n_steps.values())) == 1, n_steps
