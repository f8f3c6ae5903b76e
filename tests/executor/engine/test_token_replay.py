"""Decoded tokens as one replay, without a GPU: the same tokens, logits and records as step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch

from executor import placed_model
from executor.devices.base import Event, RecordedWork, StreamName
from executor.devices.cpu import CpuDevice
from executor.engine.via_host import ExpertsOnHost
from executor.passes import PassJob, PassResult
from executor.policies import ARMS
from executor.policies.base import PolicyOptions
from executor.policies.both import Both
from executor.policies.hot import Hot
from tests.executor.engine.recording_cpu import Recorder
from tests.executor.engine_runs import open_session, run_pass
from tests.executor.policies.made_up import Divided

N_PROMPT = 34  # a full ubatch and a small one
N_GEN = 6
Passes = list[tuple[PassResult, torch.Tensor]]


def three_passes(spec: str, arm: str = "full", **options: Any) -> Passes:
    """Of the same arm, the last like the first."""
    found: Passes = []
    with open_session(spec, [arm], **{"dtype": torch.float32, "layers": 4, **options}) as session:
        for repetition in (0, 1, 0):
            result, logits = run_pass(session, arm, N_PROMPT, N_GEN, repetition=repetition)
            assert logits is not None
            found.append((result, logits))
    return found


@pytest.fixture
def stepwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions lie on the device, as where steps are replayed, so that arithmetic is the same."""
    monkeypatch.setattr(CpuDevice, "replays", True)
    monkeypatch.setattr(placed_model, "flash_serves", lambda keys: True)


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("tiny-dense", {}),
        ("tiny-moe", {}),
        ("tiny-moe", {"synthetic_routing": True}),
        ("tiny-dense", {"layers": 3}),  # an odd number of flags
        ("tiny-dense", {"n_devices": 3}),
        ("tiny-moe", {"n_devices": 2}),
        ("tiny-moe", {"n_devices": 2, "synthetic_routing": True}),
    ],
)
@pytest.mark.usefixtures("stepwise")
def test_the_same_tokens_logits_and_records(spec: str, options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = three_passes(spec, **options)
    recorder = Recorder()
    recorder.install(monkeypatch)
    n_devices = options.get("n_devices", 1)
    found = three_passes(spec, **options)
    for number, ((got, logits), (want, its_logits)) in enumerate(zip(found, wanted, strict=True)):
        assert got.tokens == want.tokens
        assert torch.equal(logits, its_logits)
        assert got.experts == want.experts or sorted(map(repr, got.experts)) == sorted(map(repr, want.experts))
        assert got.bytes_h2d == want.bytes_h2d
        assert [(u.ubatch, u.n_past, u.policy) for u in got.ubatches] == [
            (u.ubatch, u.n_past, u.policy) for u in want.ubatches
        ]
        if number:
            assert steps(got) == steps(want)
    assert recorder.n_recorded == n_devices
    assert recorder.n_replayed == n_devices * (3 * (N_GEN - 1) - 1)


def steps(result: PassResult) -> Counter[tuple[Any, ...]]:
    """What was done, but for waits, which are a matter of time, and the flags' copies, which a recorded token brings in
    one.
    """
    return Counter(
        (e.kind, e.name, e.phase, e.ubatch, e.layer, e.device, e.stream, e.n_tokens, e.bytes)
        for e in result.events
        if e.name != "copy flags" and e.kind != "wait"
    )


@pytest.mark.usefixtures("stepwise")
def test_steps_follow_each_other_inside_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    Recorder().install(monkeypatch)
    result, _ = three_passes("tiny-moe")[-1]
    decoded = [event for event in result.events if event.phase == "decode"]
    assert all(result.t_start <= event.t_start <= event.t_end <= result.t_end for event in decoded)
    for event, after in pairwise(decoded):
        assert event.ubatch != after.ubatch or event.t_end == after.t_start
    for ubatch in result.ubatches:
        inside = [event for event in decoded if event.ubatch == ubatch.ubatch]
        assert all(ubatch.t_start <= event.t_start <= event.t_end <= ubatch.t_end for event in inside)


@pytest.mark.usefixtures("stepwise")
def test_a_token_is_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay, the copy of its report, and the logits put where they belong; the first of a pass says where it is."""
    recorder = Recorder()
    recorder.install(monkeypatch)
    with open_session("tiny-moe", ["full"], dtype=torch.float32) as session:
        for _ in range(2):
            session.run_pass(PassJob(0, "full", 0, 4, 1, 8, 0))
        before = recorder.n_issued, recorder.n_replayed
        session.run_pass(PassJob(0, "full", 0, 20, 1, 8, 0))
    assert recorder.n_replayed - before[1] == 20
    assert recorder.n_issued - before[0] == 20 * 3 + 1


@pytest.mark.usefixtures("stepwise")
def test_without_records_nothing_is_stamped(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    recorder.install(monkeypatch)
    with open_session("tiny-dense", ["full"], dtype=torch.float32) as session:
        with_records = [session.run_pass(PassJob(0, "full", 0, 4, 1, 8, 0)) for _ in range(2)]
        monkeypatch.setattr(CpuDevice, "stamp", None)
        without = session.run_pass(PassJob(0, "full", 0, 4, 1, 8, 0), record=False)
    assert without.logits_digest == with_records[1].logits_digest
    assert without.events == []


@pytest.mark.usefixtures("stepwise")
def test_a_context_that_outgrows_its_rows_is_recorded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode() -> list[Any]:
        with open_session("tiny-moe", ["full"], dtype=torch.float32, max_positions=300) as session:
            return [session.run_pass(PassJob(0, "full", 0, 12, 1, 250, 0)) for _ in range(2)]

    wanted = decode()
    recorder = Recorder()
    recorder.install(monkeypatch)
    got = decode()
    assert [result.logits_digest for result in got] == [result.logits_digest for result in wanted]
    assert [result.tokens for result in got] == [result.tokens for result in wanted]
    assert recorder.n_recorded == 2


@pytest.mark.parametrize(("n_refused", "n_replayed"), [(1, 3 * (N_GEN - 1) - 1), (2, 0), (1000, 0)])
@pytest.mark.usefixtures("stepwise")
def test_a_token_without_room_for_its_recording_runs_step_by_step(
    n_refused: int, n_replayed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is tried again, as the device then gives back what it keeps; that tokens are slower is said once."""
    wanted = three_passes("tiny-moe")
    recorder = Recorder()
    recorder.install(monkeypatch)
    record = recorder.record_work

    def record_if_room(device: CpuDevice, stream: StreamName, issue: Callable[[], None]) -> RecordedWork:
        recorded = record(device, stream, issue)
        if recorder.n_recorded <= n_refused:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return recorded

    monkeypatch.setattr(CpuDevice, "record_work", lambda device, *given: record_if_room(device, *given))
    with open_session("tiny-moe", ["full"], dtype=torch.float32, layers=4) as session:
        found = [run_pass(session, "full", N_PROMPT, N_GEN, repetition=repetition) for repetition in (0, 1, 0)]
        warnings = session.warnings
    for (got, logits), (want, its_logits) in zip(found, wanted, strict=True):
        assert got.tokens == want.tokens
        assert logits is not None
        assert torch.equal(logits, its_logits)
    assert recorder.n_replayed == n_replayed
    assert [text for text in warnings if "no room for the recording of a whole token" in text] == warnings
    assert len(warnings) == (0 if n_replayed else 1)


@pytest.mark.usefixtures("stepwise")
def test_what_breaks_a_tokens_recording_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    recorder.install(monkeypatch)

    def broken(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(CpuDevice, "record_work", broken)
    with open_session("tiny-dense", ["full"], dtype=torch.float32) as session:
        session.run_pass(PassJob(0, "full", 0, 1, 1, 8, 0))
        with pytest.raises(RuntimeError, match="not permitted"):
            session.run_pass(PassJob(0, "full", 0, 1, 1, 8, 0))


COPIES = PolicyOptions(op_offload_min_batch=1, cache_bytes=4 << 20)


@pytest.mark.parametrize(("dtype", "ways"), [(torch.float32, [False]), (torch.bfloat16, [False, True])])
@pytest.mark.parametrize(
    ("arm", "spec", "options"),
    [
        ("cpu", "tiny-dense", {"overrides": "ffn=CPU"}),
        ("cpu", "tiny-moe", {}),
        ("cpu", "tiny-moe", {"synthetic_routing": True, "n_devices": 2}),
        ("cpu", "tiny-moe", {"overrides": "blk.[02].*exps=CPU"}),  # layers between whose experts are resident
        ("off", "tiny-dense", {"policy": COPIES, "overrides": "ffn=CPU"}),
        ("off", "tiny-moe", {"policy": COPIES}),
        ("on", "tiny-moe", {"policy": COPIES, "n_devices": 2}),
        ("hot", "tiny-moe", {"policy": COPIES, "synthetic_routing": True}),
        ("cache", "tiny-moe", {"policy": COPIES, "synthetic_routing": True}),
    ],
)
@pytest.mark.usefixtures("stepwise")
def test_pieces_between_what_the_host_does(
    arm: str, spec: str, options: Any, dtype: torch.dtype, ways: Sequence[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, and (of `ways`, True) held until the host is done."""
    monkeypatch.setattr(Hot, "n_hidden", lambda *_: 8)  # else it follows from what passes took
    options = {"overrides": "exps=CPU", "dtype": dtype, **options}
    wanted = three_passes(spec, arm, **options)
    for holds in ways:
        recorder = Recorder(holds=holds)
        with monkeypatch.context() as within:
            recorder.install(within)
            found = three_passes(spec, arm, **options)
        for (got, logits), (want, its_logits) in zip(found, wanted, strict=True):
            assert got.tokens == want.tokens
            assert torch.equal(logits, its_logits)
            assert sorted(map(repr, got.experts)) == sorted(map(repr, want.experts))
            assert got.bytes_h2d == want.bytes_h2d
            assert weights_and_computed(got) == weights_and_computed(want)
        assert recorder.n_replayed == recorder.n_recorded * (3 * (N_GEN - 1) - 1)
        assert (recorder.n_held > 0) == (holds and arm == "cpu")


def weights_and_computed(result: PassResult) -> Counter[tuple[Any, ...]]:
    """Without the copies of choices, which pieces send where steps read flags back."""
    return Counter({step: n for step, n in steps(result).items() if (step[0], step[1]) != ("d2h", "copy activations")})


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("arm", ["both", "both+cache"])
@pytest.mark.usefixtures("stepwise")
def test_pieces_of_arms_that_divide(arm: str, holds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Always half and half: times, which no test may depend on, are not learned. Popularity is, so sums may be rounded
    otherwise."""
    monkeypatch.setattr(Both, "_learn_times", lambda *_: None)
    options: dict[str, Any] = {"policy": COPIES, "overrides": "exps=CPU", "synthetic_routing": True}
    wanted = three_passes("tiny-moe", arm, **options)
    recorder = Recorder(holds=holds)
    recorder.install(monkeypatch)
    for (got, logits), (_, its_logits) in zip(three_passes("tiny-moe", arm, **options), wanted, strict=True):
        assert float((logits - its_logits).norm() / its_logits.norm()) < 1e-4
        assert any(event.kind == "cpu_compute" and event.phase == "decode" for event in got.events)
    assert recorder.n_recorded > 1
    assert (recorder.n_held > 0) == holds


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.1])
@pytest.mark.usefixtures("stepwise")
def test_pieces_give_the_bits_of_the_same_division(share: float, holds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """None on the host, some, and all: with zeros taken in where the host has none."""
    monkeypatch.setitem(ARMS, "divided", Divided)
    monkeypatch.setattr(Divided, "host_share", share)
    options: dict[str, Any] = {"policy": COPIES, "overrides": "exps=CPU", "synthetic_routing": True}
    wanted = three_passes("tiny-moe", "divided", **options)
    recorder = Recorder(holds=holds)
    recorder.install(monkeypatch)
    for (got, logits), (want, its_logits) in zip(three_passes("tiny-moe", "divided", **options), wanted, strict=True):
        assert got.tokens == want.tokens
        assert torch.equal(logits, its_logits)
        assert sorted(map(repr, got.experts)) == sorted(map(repr, want.experts))
        assert computed(got) == computed(want)
    assert recorder.n_replayed > 0
    assert (recorder.n_held > 0) == (holds and share > 0)


def computed(result: PassResult) -> Counter[tuple[Any, ...]]:
    return Counter({step: n for step, n in steps(result).items() if step[0] in ("compute", "cpu_compute")})


@pytest.mark.usefixtures("stepwise")
def test_a_device_that_is_held_goes_on_where_the_hosts_part_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(holds=True)
    recorder.install(monkeypatch)

    end = ExpertsOnHost.end

    def end_or_fail(on_host: ExpertsOnHost) -> Event:
        if recorder.n_held > 3:
            raise RuntimeError("the host's part fails")
        return end(on_host)

    monkeypatch.setattr(ExpertsOnHost, "end", end_or_fail)
    with pytest.raises(RuntimeError, match="part fails"):
        three_passes("tiny-moe", "cpu", overrides="exps=CPU")


@pytest.mark.usefixtures("stepwise")
def test_a_layers_parts_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the device to the host, there, back and on: each begins when the one before it has ended."""
    Recorder().install(monkeypatch)
    result, _ = three_passes("tiny-moe", "cpu", overrides="exps=CPU")[-1]
    last = max(event.ubatch for event in result.events)
    events = sorted((e for e in result.events if e.ubatch == last), key=lambda event: event.t_start)
    names = [event.name for event in events if event.layer == 1]
    assert names == ["attn", "router", "copy activations", "experts", "copy activations"]
    assert all(event.t_end <= after.t_start for event, after in pairwise(events))


@pytest.mark.usefixtures("stepwise")
def test_mixers_that_stream_run_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    recorder.install(monkeypatch)
    with open_session("tiny-moe", ["off"], overrides="blk.1.attn=CPU", dtype=torch.float32) as session:
        run_pass(session, "off", 16, N_GEN)
    assert recorder.n_recorded == 0
