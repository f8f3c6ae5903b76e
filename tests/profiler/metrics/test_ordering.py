"""The check of recorded intervals: clean where the engine waits, and each missing wait named with its pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from executor.devices.sim import SimMachine
from executor.passes import EventRecord, PassResult
from executor.policies.base import PolicyOptions
from profiler.capture import Capture
from profiler.manifest import ManifestArm
from profiler.metrics.ordering import RESOLUTION_NS, Ordering, OrderingFault, check_ordering
from profiler.report.build import build_report
from profiler.report.markdown import render_markdown
from profiler.storage.writer import PassKey, new_capture
from tests.executor.engine_runs import open_session, run_pass, without_waits_of
from tests.profiler import makers

SLOW_LINK = SimMachine(link_gb_s=0.5, link_latency_us=1.0)
SLOW_COMPUTE = SimMachine(link_gb_s=100.0, gemm_tflop_s=0.01)
US: Final = 1000
EVERY_WAIT = "(attn_(q|k|v|output)|ffn_(gate|up|down)).*=CPU"  # mixers and FFNs: two kinds of slots


def record(path: Path, results: dict[str, PassResult]) -> Capture:
    """One measured pass an arm."""
    writer = new_capture(path, arms=[ManifestArm(arm, arm, arm) for arm in results])
    for number, (arm, result) in enumerate(results.items()):
        writer.plan_pass(number, PassKey(arm, repetition=0, order=number, boot=0))
        writer.record_pass(number, result)
    writer.finish()
    return Capture.open(path)


def run_engine(path: Path, machine: SimMachine, arms: Sequence[str], spec: str = "tiny-moe") -> Ordering:
    policy = PolicyOptions(op_offload_min_batch=1, gate_min_batch=64, cache_bytes=4 << 20)
    options: dict[str, Any] = {"kind": "sim", "machine": machine, "policy": policy, "overrides": EVERY_WAIT}
    with open_session(spec, arms, synthetic_routing=spec == "tiny-moe", **options) as session:
        # the second pass, in which arms that learn have learned
        results = {arm: [run_pass(session, arm, 96, 3, 32)[0] for _ in range(2)][1] for arm in arms}
    return check_ordering(record(path, results))


@pytest.mark.parametrize("machine", [SLOW_LINK, SLOW_COMPUTE], ids=["slow link", "slow compute"])
@pytest.mark.parametrize("spec", ["tiny-moe", "tiny-dense"])
def test_what_the_engine_does_is_in_order(spec: str, machine: SimMachine, tmp_path: Path) -> None:
    arms = ["off", "off-whole", "on", "gated", "auto", "hot", "cache", "hot+cache", "cpu", "full"]
    found = run_engine(tmp_path / "c", machine, arms, spec)
    assert found.is_clean
    assert found.n_reads > 450
    assert found.n_refills > 400
    assert "no read before its copy, no refill before its reader" in found.line()


@pytest.mark.parametrize("arm", ["on", "hot", "gated"])
def test_a_step_that_does_not_wait_for_its_copy_is_named(
    arm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_waits_of("compute", monkeypatch)
    found = run_engine(tmp_path / "c", SLOW_LINK, [arm])
    assert found.is_clean is False
    assert found.n_early_reads > 0
    assert {fault.kind for fault in found.faults} >= {"read before its copy"}
    first = next(fault for fault in found.faults if fault.kind == "read before its copy")
    assert (first.arm, first.layer, first.ubatch) == (arm, first.copy_layer, first.copy_ubatch)
    assert first.too_early_by_ns > RESOLUTION_NS


def test_a_refill_that_does_not_wait_for_the_reader_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_waits_of("copy", monkeypatch)
    found = run_engine(tmp_path / "c", SLOW_COMPUTE, ["on"])
    assert found.n_early_reads == 0
    assert found.n_early_refills > 0
    for fault in found.faults:
        assert fault.kind == "refill before its reader"
        assert (fault.copy_ubatch, fault.copy_layer) > (fault.ubatch, fault.layer)


def intervals(*, read_at_us: int, refill_at_us: int) -> PassResult:
    """Slot 0 is filled until 100 us, read for 60 us, then filled for the next layer, which is read in order."""

    def copy(layer: int, start_us: int) -> EventRecord:
        times = start_us * US, (start_us + 100) * US
        copied: dict[str, Any] = {"slot": 0, "correlation_id": layer + 1}
        return EventRecord("h2d", "copy whole", *times, 0, "copy", "prefill", 0, layer, "ffn_up", **copied)

    def step(layer: int, start_us: int) -> EventRecord:
        times = start_us * US, (start_us + 60) * US
        return EventRecord("compute", "ffn", *times, 0, "compute", "prefill", 0, layer, waits_for=layer + 1)

    events = [copy(0, 0), step(0, read_at_us), copy(1, refill_at_us), step(1, refill_at_us + 100)]
    return replace(makers.dense_result(), events=events, ubatches=[])


def test_a_pair_is_named_with_both_operations(tmp_path: Path) -> None:
    found = check_ordering(record(tmp_path / "c", {"on": intervals(read_at_us=70, refill_at_us=120)}))
    assert found.faults == (
        OrderingFault(
            "read before its copy", 0, "on", 0, 0, 0, "ffn", 1, 0, 0, "ffn_up", 0, 30 * US, 70 * US, 130 * US
        ),
        OrderingFault(
            "refill before its reader", 0, "on", 0, 0, 0, "ffn", 2, 0, 1, "ffn_up", 0, 10 * US, 70 * US, 130 * US
        ),
    )
    assert (found.n_reads, found.n_refills, found.n_early_reads, found.n_early_refills) == (2, 1, 1, 1)
    assert str(found.faults[1]) == (
        "pass 0 of arm on, device 0: copy 2 (ffn_up of layer 1, ubatch 0) into slot 0 starts 10.0 us before step ffn "
        "of layer 0, ubatch 0, which reads the slot, ends"
    )


@pytest.mark.parametrize(("early_ns", "is_clean"), [(RESOLUTION_NS, True), (RESOLUTION_NS + 1, False)])
def test_less_than_the_clocks_resolve_is_no_fault(early_ns: int, is_clean: bool, tmp_path: Path) -> None:
    result = intervals(read_at_us=100, refill_at_us=160)
    result.events[1].t_start -= early_ns
    assert check_ordering(record(tmp_path / "c", {"on": result})).is_clean == is_clean


def test_a_report_says_so_and_a_fault_is_a_serious_finding(tmp_path: Path) -> None:
    clean = build_report(record(tmp_path / "clean", {"on": intervals(read_at_us=100, refill_at_us=160)}))
    assert "Ordering: no read before its copy, no refill before its reader (2 reads and 1 refill)." in render_markdown(
        clean
    )
    assert clean.to_json()["ordering"] == {
        "state": "clean",
        "unknown": None,
        "resolution_ns": RESOLUTION_NS,
        "faults": [],
        "reads": 2,
        "refills": 1,
        "early_reads": 0,
        "early_refills": 0,
    }
    assert "ordering" not in [finding.rule for finding in clean.findings]
    faulty = build_report(record(tmp_path / "faulty", {"on": intervals(read_at_us=70, refill_at_us=160)}))
    first = faulty.findings[0]
    assert (first.rule, first.severity) == ("ordering", "serious")
    assert "step ffn of layer 0, ubatch 0 starts 30.0 us before copy 1 (ffn_up of layer 0, ubatch 0)" in first.evidence
    told = faulty.to_json()["ordering"]
    assert (told["state"], told["early_reads"], told["faults"][0]["too_early_by_ns"]) == ("faults", 1, 30 * US)


def test_nothing_is_known_of_imports_and_of_passes_that_copy_nothing(tmp_path: Path) -> None:
    imported = build_report(makers.imported_without_passes(tmp_path / "imported"))
    assert "Ordering: unknown, as the source does not say which copy a step reads." in render_markdown(imported)
    told = imported.to_json()["ordering"]
    assert (told["state"], told["reads"], told["early_reads"]) == ("unknown", None, None)
    computed = [replace(event, waits_for=None) for event in makers.dense_result().events if event.kind == "compute"]
    resident = check_ordering(record(tmp_path / "resident", {"full": replace(makers.dense_result(), events=computed)}))
    assert resident.is_clean is None
    assert resident.unknown == "no step that reads copied weights was recorded"
