"""What counts as a use of which bytes: views, names, memory that is handed on, host reads, torch.cuda's own trace."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.cuda._gpu_trace as gpu_trace

import hprof
from executor.errors import HprofError
from profiler.watching import cuda as real
from profiler.watching import issued as issued_module
from profiler.watching.issued import Issued, StreamKey
from tests.profiler.watching.fake_cuda import DEVICE, watching


def test_views_are_no_use_and_columns_that_interleave_do_not_meet() -> None:
    check, cuda = watching()
    table = cuda.empty(64).reshape(8, 8)
    with check:
        side = cuda.Stream()
        table[:, :4].fill_(1)
        with cuda.stream(side):
            table.t()[4:].unsqueeze(0)
            table[:, 4:].fill_(2)
    assert check.result.is_clean
    assert check.result.n_operations == 4  # the stand-in's two of the beginning, and two that fill


def test_without_an_order_the_same_columns_meet() -> None:
    check, cuda = watching()
    table = cuda.empty(64).reshape(8, 8)
    with check:
        table[:, :4].fill_(1)
        with cuda.stream(cuda.Stream()):
            table[:, 3:].fill_(2)
    [one] = check.result.violations
    assert (one.kind, one.start, one.end) == ("write before a write", 12, 32)


def test_pageable_memory_is_staged_and_may_be_filled_again_at_once() -> None:
    check, cuda = watching()
    with check:
        host, on_device = torch.zeros(8), cuda.empty(8)
        on_device.copy_(host, non_blocking=True)
        host.fill_(1)
    assert check.result.is_clean


@pytest.mark.parametrize("waits", [True, False])
def test_a_view_of_pinned_memory_is_its_memory(waits: bool) -> None:
    check, cuda = watching()
    slab, on_device = cuda.pinned(16), cuda.empty(8)
    with check:
        on_device.copy_(slab[8:], non_blocking=True)
        slab[:8].fill_(1)  # the other half
        if waits:
            cuda.synchronize()
        torch.frombuffer(slab.numpy(), dtype=torch.float32)[12:].fill_(1)  # another storage, the same memory
    assert check.result.n_races == (0 if waits else 1)


def test_a_name_follows_copies_and_a_wrong_one_is_found() -> None:
    check, cuda = watching()
    slab, staging, slot = cuda.pinned(16), cuda.empty(16), cuda.empty(8)
    with check:
        check.name(slab[:8], "layer 0")
        check.name(slab[8:], "layer 1")
        staging.copy_(slab, non_blocking=True)  # two names at once: none is carried
        staging[:8].copy_(slab[8:], non_blocking=True)
        slot.copy_(staging[:8])
        check.expects(slot, "layer 1")
        check.expects(slot, "layer 0")
    [wrong] = check.result.violations
    assert (wrong.kind, wrong.expected, wrong.found) == ("wrong bytes", "layer 0@0", "layer 1@0")


def test_memory_that_is_resized_is_other_memory() -> None:
    check, cuda = watching()
    with check:
        tensor = cuda.empty(8)
        with cuda.stream(cuda.Stream()):
            tensor.fill_(1)
        tensor.untyped_storage().resize_(0)  # as FSDP frees
        tensor.untyped_storage().resize_(64)
        tensor.fill_(2)
    [one] = check.result.violations
    assert one.second.op == "free"


def test_a_kernel_that_is_not_dispatched_can_be_told() -> None:
    check, cuda = watching()
    tensor = cuda.empty(8)
    with check:
        tensor.fill_(1)
        with cuda.stream(cuda.Stream()):
            check.touches("my kernel", reads=[tensor])
    [one] = check.result.violations
    assert one.second.name is not None
    assert one.second.name.startswith("my kernel at test_watching.py:")


def test_more_than_is_kept_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issued_module, "MOST_RECORDS", 10)
    check, cuda = watching()

    def goes_on() -> None:
        with check:
            for _ in range(20):
                cuda.empty(8).fill_(1)

    with pytest.raises(HprofError, match="as many as it keeps"):
        goes_on()
    assert check.result.n_operations == 10


def test_torchs_trace_of_streams_and_events_is_listened_to() -> None:
    issued, side, copy = Issued(), StreamKey(0, 77), StreamKey(0, 78)
    with real.CudaRuntime().listening(issued):
        real._TRACE.streams.update({77: side, 78: copy})
        issued.operation(side, "launch", "a", writes=[("x", 0, 8, "")])
        gpu_trace.EventRecordCallbacks.fire_callbacks(1, 77)
        gpu_trace.EventWaitCallbacks.fire_callbacks(1, 78)
        issued.operation(copy, "copy", "b", reads=[("x", 0, 8, "")])
        gpu_trace.EventCreationCallbacks.fire_callbacks(1)  # its number is used again, for an event never recorded
        gpu_trace.EventWaitCallbacks.fire_callbacks(1, 77)
        issued.operation(side, "launch", "c", writes=[("x", 0, 8, "")])
        gpu_trace.StreamSynchronizationCallbacks.fire_callbacks(78)
        issued.operation(None, "launch", "d", reads=[("x", 0, 8, "")])
    n_before = len(issued)
    gpu_trace.EventRecordCallbacks.fire_callbacks(1, 77)
    assert len(issued) == n_before, "nobody listens any more"
    found = {(one.first.name, one.second.name) for one in issued.result().violations if one.first}
    assert found == {("b", "c"), ("c", "d")}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(HprofError, match=r"torch .* sees no GPU: .*`hprof run --record-ordering`.*\.$"):
        hprof.check()


@pytest.mark.parametrize(
    "work",
    [
        lambda: torch.eye(3).to_sparse() @ torch.ones(3, 1),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) + 1,
        lambda: torch.vmap(lambda row: row * 2)(torch.ones(3, 4)),
        lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8).dequantize(),
        lambda: torch.view_as_real(torch.ones(3, dtype=torch.complex64)).add_(1),
        lambda: torch.nn.Linear(3, 3)(torch.ones(1, 3)).sum().backward(),
        lambda: torch.empty(0, device=DEVICE).add_(torch.empty(0, device=DEVICE)),
    ],
    ids=["sparse", "nested", "vmap", "quantised", "complex", "autograd", "empty"],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_of_all_kinds_run_as_before(work: Callable[[], object]) -> None:
    check, _ = watching()
    with check:
        work()
    assert check.result.is_clean
