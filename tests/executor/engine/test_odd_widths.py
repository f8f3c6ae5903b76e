"""Widths that no power of two divides, and odd numbers of rows: whatever lies beside them stays aligned."""

from __future__ import annotations

import pytest
import torch

from executor.devices.factory import DeviceOptions
from executor.model import AttentionShape, LayerShape, Model, ModelShape, MoeFfn, RopeShape
from executor.models.synthetic import QuantPlan, SyntheticSource, model_tensors
from executor.passes import PassJob
from executor.placement.place import place
from executor.policies.base import PolicyOptions
from executor.session import Session, SessionOptions

ON_DEVICE, ARMS = ("off", "on", "hot", "full"), ("off", "on", "hot", "full", "cpu", "both")


def _model(hidden: int) -> Model:
    layer = LayerShape(AttentionShape(2, 1, 20, RopeShape(1e4, 20)), MoeFfn(8, 3, 35, n_ff_shared=21))
    shape = ModelShape("odd", "qwen2moe", 101, hidden, (layer,) * 2, 1e-5)
    tensors = model_tensors(shape, QuantPlan.uniform("BF16"))
    return Model(shape, tensors, SyntheticSource(tensors, 0), "preset:odd")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("hidden", [66, 67])
def test_experts_of_an_odd_width(hidden: int, dtype: torch.dtype) -> None:
    """Each row's choices lie behind rows of 132 or 134 bytes, in one piece of memory."""
    model, policy = _model(hidden), PolicyOptions(op_offload_min_batch=1)
    options = SessionOptions(DeviceOptions("cpu", n_threads=1), 64, 33, 16, dtype=dtype, policy=policy)
    session = Session(model, place(model.tensors), ARMS, options)
    try:
        found = {arm: session.run_pass(PassJob(0, arm, 33, 3, 7, 0, 0)) for arm in ARMS}
        logits = session.last_logits
    finally:
        session.close()
    assert len({found[arm].logits_digest for arm in ON_DEVICE}) == 1
    assert logits is not None
    assert logits.isfinite().all()
    assert all(result.experts for result in found.values())
