"""Every kind of mixer on CUDA: arms bit for bit the same, and close to the CPU's float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from executor.devices.factory import DeviceOptions
from executor.model import (
    AttentionShape,
    DeltaNetShape,
    DenseFfn,
    LayerShape,
    Mixer,
    MlaShape,
    Model,
    ModelShape,
    RopeShape,
    TemperatureShape,
)
from executor.models.synthetic import QuantPlan, SyntheticSource, model_tensors
from executor.passes import PassJob
from executor.placement.place import place
from executor.policies.base import PolicyOptions
from executor.session import Session, SessionOptions

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]

ROPE = RopeShape(10000.0, 32)
MIXERS: dict[str, Mixer] = {
    "attention": AttentionShape(4, 2, 64, RopeShape(10000.0, 64)),
    "window": AttentionShape(4, 2, 64, RopeShape(10000.0, 64), window=24),
    "gates": AttentionShape(4, 2, 64, RopeShape(10000.0, 64), qk_norm=True, output_gate=True),
    "sinks": AttentionShape(4, 2, 64, RopeShape(10000.0, 64), bias=True, output_bias=True, sinks=True, window=24),
    "gemma": AttentionShape(4, 2, 64, RopeShape(10000.0, 64), window=24, qk_norm=True, scale=0.1, post_norm=True),
    "joint norms": AttentionShape(4, 2, 64, RopeShape(10000.0, 64), qk_norm=True, qk_norm_joint=True),
    "chunks": AttentionShape(4, 2, 64, RopeShape(10000.0, 64), chunk=24, qk_unit=True),
    "no positions, growing queries": AttentionShape(
        4, 2, 64, RopeShape(10000.0, 0), chunk=1024, temperature=TemperatureShape(16, 0.2, 1.0)
    ),
    "delta net": DeltaNetShape(2, 4, 64, 64, conv_width=4),
    "delta net, by key head": DeltaNetShape(2, 4, 64, 64, conv_width=4, by_key_head=True),
    "delta net, in one": DeltaNetShape(2, 4, 64, 64, conv_width=4, by_key_head=True, in_one=True),
    "mla": MlaShape(4, 96, 64, 64, 64, ROPE),
    "mla, joined": MlaShape(4, None, 64, 64, 64, ROPE, joined=True, scale=0.1, temperature=TemperatureShape(16, 0.2)),
    "mla, window": MlaShape(4, 96, 64, 64, 64, ROPE, window=24),
}
ARMS = ["off", "on", "full"]


def _model(name: str) -> Model:
    layer = LayerShape(MIXERS[name], DenseFfn(512))
    if name == "gemma":
        layer = LayerShape(MIXERS[name], DenseFfn(512, "gelu", post_norm=True), residual_scale=0.5)
    architecture = "qwen35" if name.startswith("delta net") else "deepseek2" if name.startswith("mla") else "llama"
    shape = ModelShape(name, architecture, 512, 256, (layer,) * 3, 1e-6, logit_cap=30.0 if name == "gemma" else None)
    tensors = model_tensors(shape, QuantPlan.uniform("Q8_0"))
    return Model(shape, tensors, SyntheticSource(tensors, 1), "synthetic")


def _session(model: Model, kind: str, dtype: torch.dtype) -> Session:
    options = SessionOptions(
        DeviceOptions(kind),  # type: ignore[arg-type]
        max_positions=136,
        max_ubatch=48,
        max_ubatches=16,
        dtype=dtype,
        policy=PolicyOptions(op_offload_min_batch=1),
    )
    return Session(model, place(model.tensors), ARMS, options)


def _logits(session: Session, arm: str, repetition: int = 0) -> np.ndarray:
    session.run_pass(PassJob(0, arm, 128, 4, 48, 0, repetition))
    assert session.last_logits is not None
    return session.last_logits.cpu().numpy()


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_arms_agree_and_follow_the_cpu(name: str, dtype: torch.dtype) -> None:
    model = _model(name)
    exact = _session(model, "cpu", torch.float32)
    try:
        wanted = _logits(exact, "full")[0]
    finally:
        exact.close()
    session = _session(model, "cuda", dtype)
    try:
        for repetition in (0, 0, 0):  # the third is replayed from what the second recorded
            found = {arm: _logits(session, arm, repetition) for arm in ARMS}
            assert (found["off"] == found["full"]).all()
            assert (found["on"] == found["full"]).all()
        error = np.linalg.norm(found["full"][0] - wanted) / np.linalg.norm(wanted)
        assert error <= (0.002 if dtype == torch.float32 else 0.06)
    finally:
        session.close()
