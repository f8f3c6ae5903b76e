"""The order of copies and compute: what must wait does, and what may run ahead does. No durations are compared."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from executor.devices.sim import SimMachine
from executor.passes import EventRecord, PassJob, PassResult
from executor.policies.base import PolicyOptions
from tests.executor.engine_runs import open_session, run_pass

KINDS = ["cpu", "sim"]


def run(kind: str, arm: str, spec: str = "tiny-dense", slots: int = 2, **options: Any) -> PassResult:
    policy = PolicyOptions(slots=slots)
    is_moe = spec == "tiny-moe"
    with open_session(spec, [arm], kind=kind, policy=policy, synthetic_routing=is_moe, **options) as session:
        return run_pass(session, arm, 96, 2, 32)[0]


def split_events(result: PassResult) -> tuple[dict[int, EventRecord], list[EventRecord]]:
    """Copies of weights by number, and the compute intervals that read them."""
    copies = {e.correlation_id or 0: e for e in result.events if e.kind == "h2d" and e.tensor is not None}
    readers = [e for e in result.events if e.kind == "compute" and e.waits_for is not None]
    return copies, readers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arm", ["off", "off-whole", "on", "gated"])
@pytest.mark.parametrize("spec", ["tiny-dense", "tiny-moe"])
def test_compute_starts_after_its_copy(kind: str, arm: str, spec: str) -> None:
    copies, readers = split_events(run(kind, arm, spec))
    assert len(readers) == len({e.waits_for for e in readers}) == len(copies)
    for reader in readers:
        copy = copies[reader.waits_for or 0]
        assert (copy.layer, copy.ubatch) == (reader.layer, reader.ubatch)
        assert copy.t_end <= reader.t_start


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slots", [2, 3, 4])
def test_a_slot_is_refilled_after_its_last_reader(kind: str, slots: int) -> None:
    copies, readers = split_events(run(kind, "on", slots=slots))
    by_copy = {reader.waits_for: reader for reader in readers}
    in_slot = defaultdict(list)
    for number, copy in sorted(copies.items()):
        in_slot[copy.slot].append((copy, by_copy[number]))
    assert sorted(slot for slot in in_slot if slot is not None) == list(range(slots))
    for uses in in_slot.values():
        for (_, reader), (refill, _) in pairwise(uses):
            assert reader.t_end <= refill.t_start


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arm", ["off", "on"])
def test_streams_are_in_order(kind: str, arm: str) -> None:
    by_stream = defaultdict(list)
    for event in run(kind, arm).events:
        if event.kind != "wait":
            by_stream[event.device, event.stream].append(event)
    assert {stream for _, stream in by_stream} >= ({"compute", "copy"} if arm == "on" else {"compute"})
    for events in by_stream.values():
        for before, after in pairwise(events):
            assert before.t_start <= before.t_end <= after.t_start


def test_on_copies_while_the_split_before_computes() -> None:
    copies, readers = split_events(run("sim", "on"))
    for before, reader in pairwise(readers):
        assert copies[reader.waits_for or 0].t_start < before.t_end


@pytest.mark.parametrize("slots", [2, 3, 4])
def test_more_slots_look_further_ahead(slots: int) -> None:
    copies, readers = split_events(run("sim", "on", slots=slots))
    first = readers[0].t_start
    assert sum(copy.t_start <= first for copy in copies.values()) == slots


def test_the_next_ubatch_is_prefetched_during_this_one() -> None:
    result = run("sim", "on")
    copies, _ = split_events(result)
    for before, after in zip(result.ubatches[:2], result.ubatches[1:3], strict=True):
        first_copy = min(e.t_start for e in copies.values() if e.ubatch == after.ubatch)
        assert first_copy < before.t_end


def test_off_copies_on_the_compute_stream_only() -> None:
    for spec in ("tiny-dense", "tiny-moe"):
        copies, _ = split_events(run("sim", "off", spec))
        assert {copy.stream for copy in copies.values()} == {"compute"}


def test_on_takes_the_longer_of_copy_and_compute() -> None:
    """But for the first copy, which nothing can hide, and the last layer's compute, which has no copy to hide."""
    machine = SimMachine(host_call_us=0.0)
    with open_session("tiny-dense", ["on"], kind="sim", machine=machine) as session:
        result, _ = run_pass(session, "on", 128, 0, 32)
    copies, readers = split_events(result)
    copy_ns = [copy.t_end - copy.t_start for copy in copies.values()]
    compute = [e.t_end - e.t_start for e in result.events if e.kind == "compute"]
    longer = max(sum(copy_ns), sum(compute))
    per_layer = sum(compute) / len(readers)
    assert longer <= result.t_end <= longer + copy_ns[0] + 2 * per_layer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arm", ["off", "on", "cpu", "full"])
def test_everything_happens_inside_the_pass_and_its_ubatches(kind: str, arm: str) -> None:
    result = run(kind, arm)
    assert all(result.t_start <= e.t_start <= e.t_end for e in result.events)
    assert [u.ubatch for u in result.ubatches] == list(range(len(result.ubatches)))
    for ubatch in result.ubatches:
        inside = [e for e in result.events if e.ubatch == ubatch.ubatch and e.kind == "compute"]
        assert inside
        assert ubatch.t_start <= min(e.t_start for e in inside)
        assert max(e.t_end for e in inside) <= ubatch.t_end <= result.t_end
    assert result.prefill_ns is not None
    assert result.ttft_ns is not None
    assert result.prefill_ns <= result.ttft_ns <= result.t_end - result.t_start


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_is_the_gap_before_its_reader(kind: str) -> None:
    result = run(kind, "on")
    ends = {(e.stream, e.t_end) for e in result.events if e.kind != "wait"}
    starts = {(e.stream, e.t_start, e.waits_for) for e in result.events if e.kind == "compute"}
    waits = [e for e in result.events if e.kind == "wait"]
    assert waits
    for wait in waits:
        assert (wait.stream, wait.t_end, wait.waits_for) in starts
        assert wait.t_start == 0 or (wait.stream, wait.t_start) in ends


def test_without_recording_a_pass_gives_the_same_figures_and_no_events() -> None:
    with open_session("tiny-moe", ["off", "on"], synthetic_routing=True) as session:
        jobs = [PassJob(0, arm, 64, 2, 32, 0, 0) for arm in ("off", "on")]
        pairs = [(session.run_pass(job), session.run_pass(job, record=False)) for job in jobs]
    for recorded, bare in pairs:
        assert len(bare.events) + len(bare.ubatches) + len(bare.experts) == 0
        assert (bare.tokens, bare.logits_digest) == (recorded.tokens, recorded.logits_digest)
        assert bare.bytes_h2d == recorded.bytes_h2d
        assert bare.ttft_ns is not None
