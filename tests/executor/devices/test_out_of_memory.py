"""Memory that runs out while a session is made or a pass runs: one sentence, whatever torch says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from executor.devices.cpu import CpuDevice
from executor.devices.factory import DeviceOptions
from executor.devices.out_of_memory import explain_oom, what_ran_out
from executor.devices.sim import SimMachine
from executor.engine.pass_run import PassRun
from executor.errors import HprofError, PinningRefusedError
from executor.models.load import load_model
from executor.placement.place import place
from executor.session import Session, SessionOptions
from tests.executor.engine_runs import open_session, run_pass

CUDA_SAYS = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.81 GiB of which 1.20 GiB is "
    "free. Process 7 has 138.59 GiB memory in use. See documentation for Memory Management."
)


def error_of(fail: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        fail()
    return caught.value


def too_much_host_memory() -> Any:
    return torch.empty(1 << 50, dtype=torch.uint8)


def a_graph_that_failed_in_its_memory() -> None:
    """Ending the capture raises over the error that broke it."""
    try:
        raise torch.OutOfMemoryError(CUDA_SAYS)
    finally:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (torch.OutOfMemoryError(CUDA_SAYS), "device"),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."), "device"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "device"),
        (MemoryError(), "host"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (ValueError("out of memory of what was asked"), None),
        (None, None),
    ],
)
def test_torchs_words(error: BaseException | None, memory: str | None) -> None:
    assert what_ran_out(error) == memory


def test_torchs_own_errors() -> None:
    assert what_ran_out(error_of(too_much_host_memory)) == "host"
    assert what_ran_out(error_of(a_graph_that_failed_in_its_memory)) == "device"


@pytest.mark.parametrize(
    ("fail", "sentence"),
    [
        (
            a_graph_that_failed_in_its_memory,
            "device memory ran out while it ran (2.00 GiB more were asked for and 1.20 GiB are free): lower it",
        ),
        (too_much_host_memory, "host memory ran out while it ran (1,048,576 GiB more were asked for): lower it"),
    ],
)
def test_the_sentence(fail: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(HprofError) as caught, explain_oom("it ran", lambda memory: "lower it"):
        fail()
    assert str(caught.value) == sentence


def test_other_errors_pass_as_they_are() -> None:
    for error in (RuntimeError("a bug"), HprofError("said already"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught, explain_oom("it ran", lambda memory: "lower it"):
            raise error
        assert caught.value is error


def test_a_context_larger_than_memory() -> None:
    """Nothing is allocated in vain: the address space refuses it."""
    with pytest.raises(HprofError, match="host memory ran out while memory was reserved and weights were loaded"):
        open_session("tiny-dense", ["on"], max_ubatch=1 << 40, max_positions=64).__enter__()


def test_a_pass_that_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a worker thread, as it would in a step; the session is still there to be closed."""
    with open_session("tiny-dense", ["on"]) as session:
        device = session.devices[0]
        launch = device.launch

        def fail(*arguments: Any, **_named: Any) -> None:
            launch("compute", too_much_host_memory, arguments[2])

        monkeypatch.setattr(device, "launch", fail)
        with pytest.raises(HprofError, match=r"^host memory ran out while a pass of arm 'on' ran .*--layers below 8"):
            run_pass(session, "on")


def test_a_pass_that_runs_out_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: PassRun) -> None:
        raise torch.OutOfMemoryError(CUDA_SAYS)

    monkeypatch.setattr(PassRun, "run", fail)
    with open_session("tiny-dense", ["on"]) as session, pytest.raises(HprofError) as caught:
        run_pass(session, "on")
    assert str(caught.value) == (
        "device memory ran out while a pass of arm 'on' ran (2.00 GiB more were asked for and 1.20 GiB are free): "
        "use -ub below 128, fewer than 256 tokens of -d, -p and -n, --layers below 8, "
        "or fewer resident layers (-ot, -ncmoe, -ngl)"
    )


@pytest.mark.parametrize("kind", ["cpu", "sim"])
def test_a_devices_limit(kind: Any) -> None:
    model, limit = load_model("tiny-dense"), 8 << 20
    machine = SimMachine(memory_bytes=limit) if kind == "sim" else None
    options = SessionOptions(DeviceOptions(kind, n_threads=1, memory_bytes=limit, machine=machine), 64, 32, 8)
    with pytest.raises(HprofError, match=r"device 0 has [\d,]+ bytes free and .* needs [\d,]+: keep fewer layers"):
        Session(model, place(model.tensors), ["on"], options)


def test_memory_that_cannot_be_pinned_says_how_many_layers_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver stops at 40 % of the host weights; three of eight layers would have been pinned."""
    model = load_model("tiny-dense")
    placement = place(model.tensors)
    most = 0.4 * sum(model.tensors[name].n_bytes for name in placement.host)
    pinned: list[int] = []

    def register(device: CpuDevice, memory: torch.Tensor) -> None:
        if sum(pinned) + memory.numel() > most:
            raise PinningRefusedError("the driver refused to pin it: use --load-mode mmap", sum(pinned))
        pinned.append(memory.numel())

    monkeypatch.setattr(CpuDevice, "register", register)
    monkeypatch.setattr("executor.weights.transfer_units.LOADERS", 1)
    with pytest.raises(HprofError) as caught:
        Session(model, placement, ["on"], SessionOptions(DeviceOptions("cpu", n_threads=1), 64, 32, 8))
    assert str(caught.value) == "the driver refused to pin it: use --load-mode mmap, or --layers 3, which would fit"
