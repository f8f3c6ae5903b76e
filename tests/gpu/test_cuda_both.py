"""The `both` arm on a GPU: parts add up in every pass, whatever was learned, and the host works beside the copies."""

from __future__ import annotations

import pytest
import torch

from executor.devices.factory import DeviceOptions
from executor.models.load import load_model
from executor.passes import PassJob
from executor.placement.place import place
from executor.policies.base import PolicyOptions
from executor.session import Session, SessionOptions
from tests.executor.engine_runs import routing_of

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("arms", [["both"], ["both+cache"], ["both", "both+cache"]], ids="-".join)
def test_the_parts_add_up(arms: list[str], dtype: torch.dtype) -> None:
    """In turn, where one session has both: they share slots and recorded steps, but not their stand-ins."""
    model = load_model("tiny-moe")
    options = SessionOptions(
        DeviceOptions("cuda"), 260, 64, 70, dtype=dtype, routing=routing_of(model, "lognormal"),
        policy=PolicyOptions(cache_bytes=4 << 20, op_offload_min_batch=1),
        layers_on_host=range(len(model.shape.layers)),
    )  # fmt: skip
    session = Session(model, place(model.tensors), ["off", *arms], options)
    had_host = set()
    try:
        for repetition in range(5):
            found = {}
            for name in ("off", *arms):
                job = PassJob(0, name, 200, 4, 64, 0, repetition, warmup=repetition < 3)
                result = session.run_pass(job)
                assert session.last_logits is not None
                found[name] = session.last_logits[0].float().cpu()
                if any(event.kind == "cpu_compute" and event.n_experts for event in result.events):
                    had_host.add(name)
            for name in arms:
                error = (found[name] - found["off"]).norm() / found["off"].norm()
                assert error < (1e-4 if dtype == torch.float32 else 0.05), (name, repetition)
    finally:
        session.close()
    assert had_host == set(arms)


def test_the_host_computes_while_experts_cross() -> None:
    model = load_model("qwen3-30b-a3b", quant="Q4_0", layers=4)
    options = SessionOptions(
        DeviceOptions("cuda"), 64, 32, 40, dtype=torch.bfloat16, routing=routing_of(model, "lognormal"),
        layers_on_host=range(len(model.shape.layers)),
    )  # fmt: skip
    session = Session(model, place(model.tensors), ["both"], options)
    try:
        session.run_pass(PassJob(0, "both", 0, 8, 32, 0, 0, warmup=True))
        result = session.run_pass(PassJob(0, "both", 0, 8, 32, 0, 1, warmup=True))
    finally:
        session.close()
    host = [event for event in result.events if event.kind == "cpu_compute" and event.n_experts]
    copies = [event for event in result.events if event.kind == "h2d" and event.n_experts]
    divided = {(event.ubatch, event.layer) for event in copies}  # in others the host has all, which warm-ups try too
    host = [event for event in host if (event.ubatch, event.layer) in divided]
    beside = sum(any(a.t_start < b.t_end and b.t_start < a.t_end for b in copies) for a in host)
    assert host
    assert beside > 0.8 * len(host)
