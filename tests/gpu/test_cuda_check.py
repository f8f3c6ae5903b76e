"""`hprof.check()` on CUDA: each wait that an offload loop leaves out is found, and nothing in code that is right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import hprof
from tests.profiler.watching.loops import CASES, FOUND, RealCuda, run_loop

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]


@pytest.fixture(autouse=True)
def drained() -> Iterator[None]:
    torch.cuda.synchronize()
    yield
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@pytest.mark.parametrize(("name", "without"), CASES)
def test_what_is_left_out_is_found_and_nothing_else(name: str, without: str | None) -> None:
    with hprof.check(raises=False) as check:
        run_loop(RealCuda(), check, name, without)
    for line in check.result.lines():
        print(line)
    assert {(one.kind, one.second.stream) for one in check.result.violations} == FOUND[name, without]


def test_training_with_prefetched_batches_is_in_order() -> None:
    """Modules, autograd, an optimiser, host reads by `.item()` and `.cpu()`, batches that are fetched ahead."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
    optimiser = torch.optim.AdamW(model.parameters())
    batches = [torch.randn(32, 64).pin_memory() for _ in range(4)]
    fetching = torch.cuda.Stream()
    with hprof.check(raises=False) as check:
        for batch in batches:
            with torch.cuda.stream(fetching):
                ahead = batch.to("cuda", non_blocking=True)
            torch.cuda.current_stream().wait_stream(fetching)
            ahead.record_stream(torch.cuda.current_stream())
            loss = model(ahead).square().mean()
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            assert loss.item() >= 0
            assert loss.detach().cpu().isfinite()
            assert int((ahead > 0).nonzero().shape[0]) > 0
    for line in check.result.lines():
        print(line)
    assert check.result.is_clean
    assert check.result.n_operations > 50


def test_a_query_that_says_done_is_a_wait() -> None:
    staging, on_device = torch.zeros(1024, pin_memory=True), torch.empty(1024, device="cuda")
    with hprof.check():
        for _ in range(3):
            on_device.copy_(staging, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
            while not done.query():
                pass
            staging.fill_(1)
            on_device.add_(1)
            while not torch.cuda.current_stream().query():
                pass
            staging.fill_(2)
