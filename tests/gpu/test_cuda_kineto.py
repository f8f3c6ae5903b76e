"""hprof's own recording and torch.profiler's of the same pass agree: bytes, intervals, overlap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pytest
import torch

from executor.devices.factory import DeviceOptions
from executor.job import PassJob
from executor.load import load_model
from executor.nvtx_names import format_pass
from executor.placement import place
from executor.policies.base import PolicyOptions
from executor.session import Session, SessionOptions
from profiler.importers.base import ImportOptions
from profiler.importers.kineto import read
from tests.profiler.importers.kineto.agreement import (
    Recorded,
    assert_close_intervals,
    assert_same_bytes,
    hidden_shares,
)

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]

# ubatches large enough for the host to run ahead of the device
N_PROMPT, N_UBATCH, N_LAYERS = 8192, 4096, 4


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A few layers of a real shape, so that copies and kernels are as long as in use."""
    model = load_model("llama-3.1-8b", None, N_LAYERS)
    options = SessionOptions(
        device=DeviceOptions("cuda"),
        max_positions=N_PROMPT,
        max_ubatch=N_UBATCH,
        max_ubatches=N_PROMPT // N_UBATCH,
        dtype=torch.bfloat16,
        policy=PolicyOptions(op_offload_min_batch=1),
    )
    opened = Session(model, place(model.tensors), ["off", "on"], options)
    yield opened
    opened.close()


@pytest.fixture(params=["off", "on"])
def recorded(request: pytest.FixtureRequest, session: Session, tmp_path: Path) -> Recorded:
    """Two passes inside the profiler, of which the second counts: the first pays for its instrumentation."""
    for repetition in range(3):  # kernels are compiled and chosen in the first
        session.run_pass(_job(request.param, 0, repetition, warmup=True))
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for number in range(2):
            job = _job(request.param, number, number)
            with torch.profiler.record_function(format_pass(job.nvtx_name())):
                result = session.run_pass(job)
            torch.cuda.synchronize()
    path = tmp_path / "trace.json.gz"
    profiler.export_chrome_trace(str(path))
    events = read(path, ImportOptions()).tables["events"]
    return Recorded(result.events, result.bytes_h2d, events.filter(pc.equal(events["pass_id"], 1)))


def _job(arm: str, number: int, repetition: int, *, warmup: bool = False) -> PassJob:
    return PassJob(number, arm, N_PROMPT, 0, N_UBATCH, 0, repetition, warmup)


def test_every_copy_moved_the_same_bytes(recorded: Recorded) -> None:
    assert_same_bytes(recorded, N_LAYERS * N_PROMPT // N_UBATCH)


def test_copies_lie_within_20_us_of_each_other(recorded: Recorded) -> None:
    assert_close_intervals(recorded)


def test_the_overlap_is_the_same_within_one_per_cent(recorded: Recorded) -> None:
    by_hprof, by_torch = hidden_shares(recorded)
    assert by_hprof == pytest.approx(by_torch, abs=0.01)
