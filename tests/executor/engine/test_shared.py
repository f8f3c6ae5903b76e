"""A shared expert in host memory: streamed whatever the regime, and all arms still agree."""

from __future__ import annotations

from executor.devices.factory import DeviceOptions
from executor.model import AttentionShape, LayerShape, Model, ModelShape, MoeFfn, RopeShape
from executor.models.synthetic import QuantPlan, SyntheticSource, model_tensors
from executor.passes import PassJob
from executor.placement.place import place
from executor.session import Session, SessionOptions


def _model() -> Model:
    moe = MoeFfn(8, 2, 64, n_ff_shared=64, shared_gate=True)
    layer = LayerShape(AttentionShape(4, 2, 32, RopeShape(1e4, 32)), moe)
    shape = ModelShape("shared", "qwen2moe", 256, 128, (layer,) * 3, 1e-5)
    tensors = model_tensors(shape, QuantPlan.uniform("Q8_0"))
    return Model(shape, tensors, SyntheticSource(tensors, 0), "preset:shared")


def test_decode_with_the_shared_expert_on_the_host() -> None:
    model = _model()
    placement = place(model.tensors, overrides="_exps|_shexp=CPU")
    assert any("_shexp" in name for name in placement.host)
    options = SessionOptions(DeviceOptions("cpu"), max_positions=100, max_ubatch=32, max_ubatches=10)
    session = Session(model, placement, ("off", "on", "hot", "full"), options)
    try:
        results = {arm: session.run_pass(PassJob(0, arm, 64, 4, 32, 0, 0)) for arm in session.policies}
    finally:
        session.close()
    assert len({result.logits_digest for result in results.values()}) == 1
    decode = [event for event in results["off"].events if event.phase == "decode" and event.kind == "h2d"]
    assert any("shexp" in (event.tensor or "") for event in decode)
