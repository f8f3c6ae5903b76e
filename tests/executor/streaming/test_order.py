"""The order of copies and compute: what must wait does, and what may run ahead does. No durations are compared."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from executor.devices.base import StreamName
from executor.devices.sim import SimMachine
from executor.passes import EventRecord, PassJob, PassResult
from executor.policies.base import PolicyOptions
from tests.executor.engine_runs import open_session, run_pass, without_waits_of

KINDS = ["cpu", "sim"]
SLOW_LINK = SimMachine(link_gb_s=0.5, link_latency_us=1.0)  # a step whose wait is missing starts before its copy ends
SLOW_COMPUTE = SimMachine(link_gb_s=100.0, gemm_tflop_s=0.01)  # a refill without a wait starts before its reader ends
MACHINES = {"cpu": None, "slow link": SLOW_LINK, "slow compute": SLOW_COMPUTE}
Copies = dict[int, EventRecord]


def run(kind: str, arm: str, spec: str = "tiny-dense", slots: int = 2, **options: Any) -> PassResult:
    policy = PolicyOptions(slots=slots)
    is_moe = spec == "tiny-moe"
    with open_session(spec, [arm], kind=kind, policy=policy, synthetic_routing=is_moe, **options) as session:
        return run_pass(session, arm, 96, 2, 32)[0]


def run_on(machine: str, arm: str, spec: str = "tiny-dense", slots: int = 2) -> PassResult:
    return run("cpu" if machine == "cpu" else "sim", arm, spec, slots, machine=MACHINES[machine])


def copies_and_readers(result: PassResult) -> tuple[Copies, list[EventRecord]]:
    """Copies of weights by number, and the compute intervals that read them."""
    copies = {e.correlation_id or 0: e for e in result.events if e.kind == "h2d" and e.tensor is not None}
    readers = [e for e in result.events if e.kind == "compute" and e.waits_for is not None]
    return copies, readers


def early_reads(copies: Copies, readers: list[EventRecord]) -> list[EventRecord]:
    """The readers that begin before their copy ends."""
    return [reader for reader in readers if reader.t_start < copies[reader.waits_for or 0].t_end]


def early_refills(copies: Copies, readers: list[EventRecord]) -> list[EventRecord]:
    """The copies that begin before the last reader of their slot ends; for models with one kind of step streamed."""
    by_copy = {reader.waits_for: reader for reader in readers}
    in_slot = defaultdict(list)
    for number, copy in sorted(copies.items()):
        in_slot[copy.slot].append((copy, by_copy[number]))
    pairs = [pair for uses in in_slot.values() for pair in pairwise(uses)]
    return [refill for (_, reader), (refill, _) in pairs if refill.t_start < reader.t_end]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("arm", ["off", "off-whole", "on", "gated"])
@pytest.mark.parametrize("spec", ["tiny-dense", "tiny-moe"])
def test_compute_starts_after_its_copy(machine: str, arm: str, spec: str) -> None:
    copies, readers = copies_and_readers(run_on(machine, arm, spec))
    assert len(readers) == len({e.waits_for for e in readers}) == len(copies)
    for reader in readers:
        copy = copies[reader.waits_for or 0]
        assert (copy.layer, copy.ubatch) == (reader.layer, reader.ubatch)
    assert early_reads(copies, readers) == []


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("slots", [2, 3, 4])
def test_a_slot_is_refilled_after_its_last_reader(machine: str, slots: int) -> None:
    copies, readers = copies_and_readers(run_on(machine, "on", slots=slots))
    assert sorted({copy.slot for copy in copies.values() if copy.slot is not None}) == list(range(slots))
    assert early_refills(copies, readers) == []


@pytest.mark.parametrize(("machine", "stream"), [("slow link", "compute"), ("slow compute", "copy")])
@pytest.mark.parametrize("spec", ["tiny-dense", "tiny-moe"])
def test_these_tests_see_a_missing_wait(
    machine: str, stream: StreamName, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wait("compute", ready)` keeps steps behind their copies, `wait("copy", free)` refills behind readers."""
    without_waits_of(stream, monkeypatch)
    copies, readers = copies_and_readers(run_on(machine, "on", spec))
    assert bool(early_reads(copies, readers)) == (stream == "compute")
    assert bool(early_refills(copies, readers)) == (stream == "copy")


def host_trips(result: PassResult) -> list[list[EventRecord]]:
    """The activations' way to the CPU and back, trip by trip: out, computed, in."""
    moved = [e for e in result.events if e.kind == "cpu_compute" or e.name == "copy activations"]
    return [moved[start : start + 3] for start in range(0, len(moved), 3)]


def early_steps(trips: list[list[EventRecord]]) -> tuple[bool, bool]:
    """Whether any CPU step begins before its rows are out, and whether any rows go back before the step ends."""
    assert trips
    assert all([e.kind for e in trip] == ["d2h", "cpu_compute", "h2d"] for trip in trips)
    return (
        any(step.t_start < out.t_end for out, step, _ in trips),
        any(back.t_start < step.t_end for _, step, back in trips),
    )


@pytest.mark.parametrize("spec", ["tiny-dense", "tiny-moe"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_cpu_computes_between_the_copies_of_its_rows(kind: str, spec: str) -> None:
    assert early_steps(host_trips(run(kind, "cpu", spec))) == (False, False)


@pytest.mark.parametrize(("stream", "early"), [("host", (True, False)), ("compute", (False, True))])
def test_that_test_sees_a_missing_wait(
    stream: StreamName, early: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_waits_of(stream, monkeypatch)
    assert early_steps(host_trips(run("sim", "cpu"))) == early


def early_transfers(machine: SimMachine) -> tuple[bool, bool]:
    """Between two devices: whether rows are fetched before they are out, and overwritten before they are fetched."""
    # the second device has most layers, so that the first runs ahead of it
    result = run("sim", "full", n_devices=2, tensor_split=(1.0, 5.0), layers=4, machine=machine)
    moved = [e for e in result.events if e.name == "copy activations"]
    out, fetched = (sorted((e for e in moved if e.kind == kind), key=lambda e: e.ubatch) for kind in ("d2h", "h2d"))
    assert len(out) == len(fetched) > 2
    return (
        any(there.t_start < here.t_end for here, there in zip(out, fetched, strict=True)),
        any(later.t_start < there.t_end for there, later in zip(fetched[:-1], out[1:], strict=True)),
    )


@pytest.mark.parametrize("machine", [SLOW_LINK, SLOW_COMPUTE], ids=["slow link", "slow compute"])
def test_devices_hand_over_rows_in_order(machine: SimMachine) -> None:
    assert early_transfers(machine) == (False, False)


@pytest.mark.parametrize(("index", "early"), [(1, (True, False)), (0, (False, True))])
def test_this_test_sees_a_missing_wait_of_either_device(
    index: int, early: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_waits_of("compute", monkeypatch, index)
    machine = SLOW_LINK if index == 1 else SLOW_COMPUTE
    assert early_transfers(machine) == early


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


def test_on_copies_while_the_unit_before_computes() -> None:
    copies, readers = copies_and_readers(run("sim", "on"))
    for before, reader in pairwise(readers):
        assert copies[reader.waits_for or 0].t_start < before.t_end


@pytest.mark.parametrize("slots", [2, 3, 4])
def test_more_slots_look_further_ahead(slots: int) -> None:
    fast = SimMachine(link_gb_s=100.0)  # so that all copies that may start have started
    copies, readers = copies_and_readers(run("sim", "on", slots=slots, machine=fast))
    first = readers[0].t_start
    assert sum(copy.t_start <= first for copy in copies.values()) == slots


def test_the_next_ubatch_is_prefetched_during_this_one() -> None:
    result = run("sim", "on")
    copies, _ = copies_and_readers(result)
    for before, after in zip(result.ubatches[:2], result.ubatches[1:3], strict=True):
        first_copy = min(e.t_start for e in copies.values() if e.ubatch == after.ubatch)
        assert first_copy < before.t_end


def test_off_copies_on_the_compute_stream_only() -> None:
    for spec in ("tiny-dense", "tiny-moe"):
        copies, _ = copies_and_readers(run("sim", "off", spec))
        assert {copy.stream for copy in copies.values()} == {"compute"}


def test_on_takes_the_longer_of_copy_and_compute() -> None:
    """But for the first copy, which nothing can hide, and the last layer's compute, which has no copy to hide."""
    machine, policy = SimMachine(host_call_us=0.0), PolicyOptions(op_offload_min_batch=1)
    with open_session("tiny-dense", ["on"], kind="sim", machine=machine, policy=policy) as session:
        result, _ = run_pass(session, "on", 128, 0, 32)
    copies, readers = copies_and_readers(result)
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
def test_a_wait_is_the_gap_before_its_reader_until_its_copy_has_ended(kind: str) -> None:
    result = run(kind, "on")
    ends = {(e.stream, e.t_end) for e in result.events if e.kind != "wait"}
    readers = {(e.stream, e.waits_for, e.layer): e.t_start for e in result.events if e.kind == "compute"}
    copied = {e.correlation_id: e.t_end for e in result.events if e.kind == "h2d"}
    waits = [e for e in result.events if e.kind == "wait"]
    assert waits or kind != "sim"
    for wait in waits:
        assert wait.t_end == min(copied[wait.waits_for], readers[wait.stream, wait.waits_for, wait.layer])
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
