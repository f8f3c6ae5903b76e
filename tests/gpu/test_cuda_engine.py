"""The engine on CUDA: llama.cpp's logits, and every arm bit for bit the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from executor.devices.factory import DeviceOptions
from executor.model import Model, MoeFfn
from executor.models.load import load_model
from executor.passes import PassJob
from executor.placement.place import place
from executor.policies import ARMS
from executor.policies.base import PolicyOptions
from executor.routing.routers import Routing
from executor.routing.spec import routing_from_spec
from executor.session import Session, SessionOptions
from tests.executor.policies.made_up import Divided
from tests.gguf_models import logits_path, model_path

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]

# (file, largest median error): an exact forward's figure in tests/data/README.md, and room for rounding
FILES = [
    ("llama-dense-F16", 0.0015),
    ("llama-dense-Q4_0", 0.0033),
    ("llama-dense-Q4_K", 0.0022),
    ("llama-dense-Q8_0", 0.0205),
    ("qwen3-dense-Q8_0", 0.0196),
    ("qwen3moe-e8k2-Q4_K", 0.0022),
    ("qwen3moe-e8k2-Q8_0", 0.0204),
]
SAME_DEVICE_ARMS = ["off", "off-whole", "on", "gated", "hot", "auto", "cache", "hot+cache", "full"]


def _session(spec: str, arms: list[str], n_prompt: int, n_gen: int, **options: Any) -> Session:
    model = load_model(spec)
    settings: dict[str, Any] = {
        "device": DeviceOptions("cuda"),
        "max_positions": n_prompt + n_gen,
        "max_ubatch": n_prompt,
        "max_ubatches": n_prompt + n_gen,
        "policy": PolicyOptions(cache_bytes=4 << 20, op_offload_min_batch=1),  # everything on the device
        **options,
    }
    return Session(model, place(model.tensors), arms, SessionOptions(**settings))


def _routing(model: Model) -> Routing | None:
    """The default family's choices for a model whose MoE layers are alike; None for a dense one."""
    moe = {i: layer.ffn for i, layer in enumerate(model.shape.layers) if isinstance(layer.ffn, MoeFfn)}
    if not moe:
        return None
    n_experts, n_used = next((ffn.n_experts, ffn.n_used) for ffn in moe.values())
    return routing_from_spec("lognormal", layers=list(moe), n_experts=n_experts, n_used=n_used, seed=0)


@pytest.mark.parametrize(("name", "limit"), FILES)
def test_reference_logits(name: str, limit: float) -> None:
    reference = np.load(logits_path(name))
    tokens, wanted = reference["tokens"], reference["logits"]
    session = _session(str(model_path(name)), ["on"], len(tokens), 0, prompt=[int(t) for t in tokens])
    errors = []
    try:
        for n in range(1, len(tokens) + 1):
            session.run_pass(PassJob(0, "on", n, 0, 16, 0, 0))
            assert session.last_logits is not None
            got = session.last_logits[0].cpu().numpy()
            errors.append(np.linalg.norm(got - wanted[n - 1]) / np.linalg.norm(wanted[n - 1]))
        session.run_pass(PassJob(0, "on", len(tokens), 0, 16, 0, 0, all_logits=True))
        assert session.last_logits is not None
        every = session.last_logits.cpu().numpy()
    finally:
        session.close()
    assert np.median(errors) <= limit
    assert np.median(np.linalg.norm(every - wanted, axis=1) / np.linalg.norm(wanted, axis=1)) <= limit


@pytest.mark.parametrize("spec", ["tiny-dense", "tiny-moe", "qwen3moe-e8k2-Q4_K"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_arms_are_bit_identical(spec: str, dtype: torch.dtype) -> None:
    is_file = spec.startswith("qwen3moe")
    path = str(model_path(spec)) if is_file else spec
    model = load_model(path)
    routing = None if is_file else _routing(model)
    arms = [*SAME_DEVICE_ARMS, "cpu"]
    session = _session(path, arms, 200, 4, dtype=dtype, routing=routing)
    try:
        for repetition in range(3):
            results = {arm: session.run_pass(PassJob(0, arm, 200, 4, 64, 0, repetition)) for arm in arms}
            digests = {arm: results[arm].logits_digest for arm in SAME_DEVICE_ARMS}
            assert len(set(digests.values())) == 1, digests
            assert len({tuple(results[arm].tokens) for arm in SAME_DEVICE_ARMS}) == 1
            assert results["on"].bytes_h2d > 0
    finally:
        session.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("arm", ["divided", "divided+cache"])
def test_experts_divided_between_host_and_device_add_up(
    monkeypatch: pytest.MonkeyPatch, arm: str, dtype: torch.dtype
) -> None:
    monkeypatch.setitem(ARMS, "divided", Divided)
    session = _session("tiny-moe", ["off", arm], 200, 1, dtype=dtype, routing=_routing(load_model("tiny-moe")))
    found: dict[str, torch.Tensor] = {}
    try:
        for repetition, n_prompt in enumerate([200, 200, 200, 0, 0, 0]):  # a step is recorded, then replayed
            for name in ("off", arm):
                result = session.run_pass(PassJob(0, name, n_prompt, 1, 64, 0, repetition))
                assert session.last_logits is not None
                found[name] = session.last_logits[0].cpu()
            assert {"cpu_compute", "h2d", "compute"} <= {event.kind for event in result.events}
            error = (found[arm] - found["off"]).norm() / found["off"].norm()
            assert error < (1e-4 if dtype == torch.float32 else 0.05)
    finally:
        session.close()


def test_every_interval_is_inside_its_pass() -> None:
    session = _session("tiny-dense", ["on"], 256, 4)
    try:
        for repetition in range(3):
            result = session.run_pass(PassJob(0, "on", 256, 4, 64, 0, repetition))
    finally:
        session.close()
    assert all(0 <= event.t_start <= event.t_end for event in result.events)
    slack_ns = 50_000  # the host's clock and the device's are aligned once, at the start of the pass
    assert max(event.t_end for event in result.events) <= result.t_end + slack_ns
