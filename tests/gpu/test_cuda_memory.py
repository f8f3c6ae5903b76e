"""Out of device memory and out of pinnable memory on CUDA: one sentence each, and the GPU stays usable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from executor.devices.cuda import CudaDevice
from executor.devices.factory import DeviceOptions
from executor.errors import HprofError, PinningRefusedError
from executor.models.load import load_model
from executor.passes import PassJob
from executor.placement.place import place
from executor.policies.base import PolicyOptions
from executor.session import Session, SessionOptions
from profiler.planning.memory import MemoryRequest, demands, free_memory
from profiler.planning.plan import plan_run
from profiler.planning.request import GridPoint, RunRequest

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]

MIB = 1 << 20


@pytest.fixture(autouse=True)
def whole_gpu() -> Iterator[None]:
    torch.cuda.empty_cache()
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def leave_mib(n: int) -> None:
    """Let torch take `n` MiB more than it holds, as if the rest of the GPU were another's."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + n * MIB) / total)


def options(**changes: Any) -> SessionOptions:
    policy = PolicyOptions(op_offload_min_batch=1)
    sizes = {"max_positions": 4097, "max_ubatch": 4096, "max_ubatches": 4}
    return SessionOptions(DeviceOptions("cuda"), dtype=torch.bfloat16, policy=policy, **(sizes | changes))


def open_session(**changes: Any) -> Session:
    model = load_model("llama-3.1-8b", quant="Q4_0", layers=1)
    return Session(model, place(model.tensors), ["on"], options(**changes))


def test_a_context_that_does_not_fit() -> None:
    torch.zeros(1, device="cuda")
    leave_mib(2048)
    with pytest.raises(
        HprofError, match=r"^device memory ran out while memory was reserved .*are free\): use -ub below"
    ):
        open_session(max_positions=2_000_000)


def test_weights_that_do_not_fit() -> None:
    torch.zeros(1, device="cuda")
    leave_mib(700)  # the link is measured with 256 MiB; two embedding matrices take 560
    with pytest.raises(HprofError, match=r"resident tensors needs|^device memory ran out"):
        open_session()


def test_a_pass_that_does_not_fit_and_one_that_does() -> None:
    """Between the two nothing is left broken: streams, events and the allocator go on."""
    session = open_session()
    try:
        leave_mib(64)
        with pytest.raises(HprofError, match=r"^device memory ran out while a pass of arm 'on' ran"):
            session.run_pass(PassJob(0, "on", 4096, 2, 4096, 0, 0))
        torch.cuda.set_per_process_memory_fraction(1.0)
        # the first pass records what the others replay: libraries may pick other kernels while recording
        _, second, third = (session.run_pass(PassJob(1, "on", 4096, 2, 4096, 0, 0)) for _ in range(3))
        assert second.logits_digest == third.logits_digest
    finally:
        session.close()


def test_memory_that_is_refused_to_be_pinned() -> None:
    device = CudaDevice()
    try:
        slab = device.host_slab(4 * MIB, pinned=True)
        with pytest.raises(PinningRefusedError, match=r"refused to pin 4 MiB .* beside the 4 MiB") as caught:
            device.register(slab)  # pinned already: the driver says no, for whatever reason
        assert caught.value.pinned_bytes == 4 * MIB
    finally:
        device.close()


def test_a_hopeless_run_is_refused_before_it_loads() -> None:
    cells = (GridPoint(512, 0, 512, 1_000_000_000),)
    with pytest.raises(HprofError, match=r"of GPU memory for this run and .* the context alone takes .* would fit"):
        plan_run(RunRequest(cells, DeviceOptions("cuda"), model="llama-3.1-8b"))


def test_what_is_counted_is_what_a_pass_takes_at_least() -> None:
    """The count must not refuse what would have fitted; it should not miss much either."""
    model, cell = load_model("llama-3.1-8b", quant="Q4_0", layers=4), GridPoint(4096, 1, 4096, 0)
    placement = place(model.tensors)
    run = MemoryRequest(model, placement, ("on",), options(), (cell,))
    [device, _] = demands(run, free_memory(run.options.device))
    session = Session(model, placement, ["on"], run.options)
    try:
        torch.cuda.empty_cache()
        session.run_pass(PassJob(0, "on", 4096, 1, 4096, 0, 0))
        peak = session.devices[0].peak_bytes()  # torch's own begins anew where products are measured
    finally:
        session.close()
    assert peak is not None
    print(f"\ncounted {device.needed / MIB:,.0f} MiB {device.parts}, peak {peak / MIB:,.0f} MiB")
    assert device.needed <= peak * 1.02
    assert device.needed >= peak * 0.85
