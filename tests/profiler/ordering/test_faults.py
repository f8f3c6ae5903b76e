"""Each fault that `--inject` plants is found, as what it is; without it nothing is."""

from __future__ import annotations

import pytest

from executor.devices.faults import FAULTS
from executor.fault_names import FAULT_MEANINGS
from profiler.ordering.check import CheckResult
from tests.profiler.ordering.records import check, record_engine

READ, REFILL, OVERWRITE = "read before its write", "write before its reader", "write before a write"
WRONG, UNDER = "wrong bytes", "overwritten under its reader"
STEP, COPY, HOST, THREAD = "compute", "copy", "host", "thread"
# fault -> the arm that shows it; what is found, and on which stream the second operation is; why, in words
SHOWN = {
    "drop-wait": ("on", {(READ, STEP)}, "stream compute waits for nothing of stream copy before"),
    "drop-refill-wait": ("on", {(REFILL, COPY)}, "stream copy waits for nothing of stream compute before"),
    "late-record": ("on", {(READ, STEP)}, "which nobody has recorded by then"),
    "stale-generation": ("on", {(READ, STEP)}, "the last event that stream compute waits for there is"),
    "wrong-slot": ("on", {(WRONG, STEP), (UNDER, STEP)}, "where the second relies on"),
    "refill-pinned": ("on", {(REFILL, THREAD)}, "the issuing thread waits for nothing of stream copy"),
    "overlapping-views": ("on", {(UNDER, STEP)}, "where the second relies on"),
    "free-in-flight": ("on", {(OVERWRITE, HOST), (OVERWRITE, COPY), (UNDER, STEP)}, "stream host waits for nothing"),
    "prefetch-bank": ("cache", {(READ, STEP)}, "stream compute waits for nothing of stream copy before"),
    "prefetch-uncomputed": ("cpu", {(READ, STEP), (REFILL, STEP)}, "waits for nothing of stream host before"),
    "swallow-error": ("on", {(WRONG, STEP)}, "the last write in order carries another tag"),
}


def found_with(fault: str | None, arm: str, kind: str) -> CheckResult:
    return check(*record_engine("tiny-moe", arm, kind, n_gen=2 if arm == "cache" else 0, inject=fault))


def test_all_faults_are_here() -> None:
    assert FAULTS.keys() == FAULT_MEANINGS.keys()
    assert {*SHOWN, "late-issue"} == FAULTS.keys()


@pytest.mark.parametrize("kind", ["cpu", "sim"])
@pytest.mark.parametrize("fault", SHOWN)
def test_a_fault_is_found(fault: str, kind: str) -> None:
    arm, kinds, because = SHOWN[fault]
    found = found_with(fault, arm, kind)
    assert {(violation.kind, violation.second.stream) for violation in found.violations} == kinds
    assert any(because in violation.because for violation in found.violations)


def test_late_copies_are_in_order() -> None:
    assert found_with("late-issue", "on", "sim").is_clean


@pytest.mark.parametrize("arm", sorted({arm for arm, *_ in SHOWN.values()}))
def test_without_a_fault_nothing_is_found(arm: str) -> None:
    assert found_with(None, arm, "sim").is_clean
