"""Layers split over two GPUs: the same tokens as on one, and both links used."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executor.devices.factory import DeviceOptions
from executor.model import MoeFfn
from executor.models.load import load_model
from executor.passes import PassJob, PassResult
from executor.placement.place import place
from executor.policies.base import PolicyOptions
from executor.routing.spec import routing_from_spec
from executor.session import Session, SessionOptions

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two NVIDIA GPUs"),
]
ARMS = ["off", "on", "hot", "full"]


def _run(spec: str, n_devices: int, tensor_split: tuple[float, ...]) -> dict[str, PassResult]:
    model = load_model(spec)
    moe: list[tuple[int, Any]] = [(i, s.ffn) for i, s in enumerate(model.shape.layers) if isinstance(s.ffn, MoeFfn)]
    routing = None
    if moe:
        sizes = {"n_experts": moe[0][1].n_experts, "n_used": moe[0][1].n_used}
        routing = routing_from_spec("lognormal", layers=[i for i, _ in moe], seed=0, **sizes)
    options = SessionOptions(
        DeviceOptions("cuda", n_devices),
        max_positions=208,
        max_ubatch=64,
        max_ubatches=16,
        dtype=torch.bfloat16,
        tensor_split=tensor_split,
        policy=PolicyOptions(op_offload_min_batch=1),
        routing=routing,
    )
    session = Session(model, place(model.tensors), ARMS, options)
    try:
        for repetition in range(2):
            results = {arm: session.run_pass(PassJob(0, arm, 200, 8, 64, 0, repetition)) for arm in ARMS}
        return results
    finally:
        session.close()


@pytest.mark.parametrize("spec", ["tiny-dense", "tiny-moe"])
@pytest.mark.parametrize("tensor_split", [(1.0, 1.0), (3.0, 1.0)])
def test_two_gpus_compute_what_one_does(spec: str, tensor_split: tuple[float, ...]) -> None:
    one, two = _run(spec, 1, ()), _run(spec, 2, tensor_split)
    assert {r.logits_digest for r in two.values()} == {r.logits_digest for r in one.values()}
    assert {tuple(r.tokens) for r in two.values()} == {tuple(one["off"].tokens)}
    for arm in ("off", "on"):
        weights = [event for event in two[arm].events if event.kind == "h2d" and event.tensor is not None]
        assert {event.device for event in weights} == {0, 1}
        assert sum(e.bytes or 0 for e in weights) == sum(
            e.bytes or 0 for e in one[arm].events if e.kind == "h2d" and e.tensor is not None
        )
