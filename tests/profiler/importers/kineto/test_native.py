"""A pass of hprof's own engine on an H200, recorded by hprof and by torch.profiler at once: both say the same."""

from __future__ import annotations

import gzip
import json

import pyarrow.compute as pc
import pytest

from executor.passes import EventRecord
from profiler.importers.base import ImportOptions
from profiler.importers.kineto import read
from tests.profiler.importers.kineto.agreement import (
    Recorded,
    assert_close_intervals,
    assert_same_bytes,
    hidden_shares,
)
from tests.support import ROOT

DATA = ROOT / "tests" / "data" / "kineto"
N_COPIES = 8  # two ubatches over the FFNs of four layers of Llama 3.1 8B, Q4_K


@pytest.fixture(scope="module", params=["off", "on"])
def recorded(request: pytest.FixtureRequest) -> Recorded:
    trace = DATA / f"h200_llama8b_4layers_{request.param}.json.gz"
    native = json.loads(gzip.decompress((DATA / f"h200_llama8b_4layers_{request.param}.native.json.gz").read_bytes()))
    rows = read(trace, ImportOptions()).tables["events"]
    events = [EventRecord(**event) for event in native["profiled"]]
    return Recorded(events, native["bytes"], rows.filter(pc.equal(rows["pass_id"], 1)))


def test_every_copy_moved_the_same_bytes(recorded: Recorded) -> None:
    assert_same_bytes(recorded, N_COPIES)


def test_copies_lie_within_20_us_of_each_other(recorded: Recorded) -> None:
    assert_close_intervals(recorded)


def test_the_overlap_is_the_same_within_one_per_cent(recorded: Recorded) -> None:
    by_hprof, by_torch = hidden_shares(recorded)
    assert by_hprof == pytest.approx(by_torch, abs=0.01)
