"""Streams that wait for the host's word, and decoding with them: what comes behind the host's part is queued before."""

from __future__ import annotations

import time

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


def test_what_follows_waits_until_it_is_let_go() -> None:
    from executor.devices.cuda import CudaDevice

    device = CudaDevice()
    try:
        if not device.holds:
            pytest.skip("this driver has no waits for host memory")
        for _ in range(3):
            let_go = device.hold("compute")
            behind, aside = device.event(), device.event()
            device.record("compute", behind)
            device.record("copy", aside)
            device.synchronize(aside)  # another stream goes on
            time.sleep(0.02)
            assert not behind.cuda.query()
            let_go()
            let_go()
            device.synchronize(behind)
        device.hold("compute")
        device.drain()  # what was interrupted is let go
    finally:
        device.close()


@pytest.mark.parametrize("arm", ["cpu", "both", "both+cache"])
def test_tokens_are_the_same_as_without(arm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model("tiny-moe")
    options = SessionOptions(
        DeviceOptions("cuda"), 260, 64, 70, dtype=torch.bfloat16, routing=routing_of(model, "lognormal"),
        policy=PolicyOptions(cache_bytes=4 << 20, op_offload_min_batch=1),
        layers_on_host=range(len(model.shape.layers)),
    )  # fmt: skip
    session = Session(model, place(model.tensors), [arm], options)
    device = session.devices[0]
    try:
        could_hold, found = device.holds, []
        for repetition in range(6):
            device.holds = could_hold and repetition % 2 == 1
            session.run_pass(PassJob(0, arm, 64, 24, 64, 0, 0, warmup=repetition < 4))
            assert session.last_logits is not None
            found.append(session.last_logits.float().cpu())
    finally:
        session.close()
    warmups, measured = found[:4], found[4:]  # which have tokens of their own
    for first, *others in (warmups, measured):
        for logits in others:
            if arm == "cpu":
                assert torch.equal(logits, first)
            else:  # divided otherwise, sums are rounded otherwise
                assert (logits[0] - first[0]).norm() / first[0].norm() < 0.05
