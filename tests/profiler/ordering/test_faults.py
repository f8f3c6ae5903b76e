"""Each fault that `--inject` plants is found as what it is, and is real: logits differ. A clean run has none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executor.devices.faults import FAULTS
from executor.fault_names import FAULT_MEANINGS
from executor.policies.base import PolicyOptions
from profiler.ordering.check import CheckResult
from tests.executor.engine_runs import open_session, run_pass
from tests.profiler.ordering.planted import SHOWN, SLOW, run_until_it_shows, run_with
from tests.profiler.ordering.records import check, record_engine


def found_with(fault: str | None, arm: str, kind: str) -> CheckResult:
    return check(*record_engine("tiny-moe", arm, kind, n_gen=2 if arm == "cache" else 0, inject=fault))


def test_all_faults_are_here() -> None:
    assert FAULTS.keys() == FAULT_MEANINGS.keys()
    assert SHOWN.keys() | SLOW == FAULTS.keys()


@pytest.mark.parametrize("kind", ["cpu", "sim"])
@pytest.mark.parametrize("fault", SHOWN)
def test_a_fault_is_found(fault: str, kind: str) -> None:
    shown = SHOWN[fault]
    found = found_with(fault, shown.arm, kind)
    assert {(violation.kind, violation.second.stream) for violation in found.violations} == shown.kinds
    assert any(shown.because in violation.because for violation in found.violations)


@pytest.mark.parametrize("fault", SHOWN)
def test_a_fault_changes_bits_where_a_stream_is_slow(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = SHOWN[fault]
    clean = run_with(None, shown.arm, "cpu", shown.delayed, monkeypatch, model=shown.model)
    faulty = run_until_it_shows(fault, clean, "cpu", monkeypatch)
    assert clean.found.is_clean
    assert faulty.kinds
    assert faulty.kinds <= shown.kinds  # a pass this short may not show all
    assert not torch.equal(clean.logits, faulty.logits)


@pytest.mark.parametrize("fault", sorted(SLOW))
def test_what_costs_time_alone_is_in_order(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clean, slow = (run_with(name, "on", "cpu", None, monkeypatch) for name in (None, fault))
    assert slow.found.is_clean
    assert torch.equal(clean.logits, slow.logits)


@pytest.mark.parametrize("arm", sorted({shown.arm for shown in SHOWN.values()}))
def test_without_a_fault_nothing_is_found(arm: str) -> None:
    assert found_with(None, arm, "sim").is_clean


def test_a_stale_wait_has_a_generation_of_its_own() -> None:
    """The event that a step waits for was recorded before, for the slot's last copy, and is recorded again after."""
    records = record_engine("tiny-moe", "on", "sim", n_gen=0, all_logits=True, inject="stale-generation")[0]
    waits = [one for one in records if one.op == "wait" and one.stream == "compute"]
    of_event = [one.generation for one in waits if one.event == waits[0].event]
    assert of_event == list(range(len(of_event)))
    for wait in waits:
        after = records[wait.sequence + 1]
        assert (after.op, after.event, after.generation) == ("record", wait.event, (wait.generation or 0) + 1)


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_faulty_run_has_possible_times(fault: str) -> None:
    """What is recorded late or elsewhere is waited for late or never, but each interval still begins before it ends."""
    arm = SHOWN[fault].arm if fault in SHOWN else "on"
    options: dict[str, Any] = {"kind": "sim", "layers": 3, "synthetic_routing": True, "record_ordering": True}
    policy = PolicyOptions(cache_bytes=1 << 20)
    with open_session("tiny-moe", [arm], policy=policy, inject=fault, **options) as session:
        events = run_pass(session, arm, 64, 2, 32)[0].events
    assert events
    assert all(0 <= event.t_start <= event.t_end for event in events)
