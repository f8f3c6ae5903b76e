"""What a report says about captures whose answers are known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiler.capture import Capture
from profiler.manifest import ManifestArm
from profiler.metrics import DIRECTIONS, FIGURES
from profiler.report.build import build_report
from profiler.storage.writer import PassKey, conform, new_capture
from tests.profiler import makers


def walk(value: Any) -> list[Any]:
    if isinstance(value, dict):
        assert all(isinstance(key, str) for key in value)
        return [leaf for item in value.values() for leaf in walk(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in walk(item)]
    return [value]


def test_dense_off_against_on(tmp_path: Path) -> None:
    report = build_report(makers.dense_off_on(tmp_path / "c")).to_json()
    assert (report["schema"], report["state"], report["source"], report["baseline"]) == (1, "complete", "hprof", "off")
    (cell,) = report["cells"]
    sizes = {name: cell[name] for name in ("n_prompt", "n_gen", "n_ubatch", "n_depth")}
    assert sizes == {"n_prompt": 8, "n_gen": 2, "n_ubatch": 4, "n_depth": 0}
    assert (cell["same_tokens"], cell["bit_identical"]) == (True, True)
    off, on = cell["arms"]["off"], cell["arms"]["on"]
    assert off["ttft_ns"] == {"median": 642_500, "low": 640_000, "high": 645_000, "n": 6, "outliers": 0}
    assert on["exposed_copy_ns"]["median"] == 300_000
    assert on["decode"]["overlap_efficiency"]["median"] == 1
    assert on["cache_hit_rate"] is None
    assert off["n_passes"] == 6, "the warm-up is left out"
    ttft = cell["against_baseline"]["on"]["ttft_ns"]
    assert (ttft["verdict"], ttft["pairs"], ttft["reason"]) == ("faster", 6, None)
    assert ttft["ratio"] == pytest.approx(462.5 / 642.5)
    assert cell["against_baseline"]["on"]["decode_tokens_per_s"]["ratio"] == pytest.approx(1.6)
    (device,) = report["devices"]
    assert device["compute"]["kernels"] == 14 * 6
    assert device["copies"]["h2d"]["bytes"] == 14 * 48_000, "devices cover the whole capture, warm-ups too"
    assert device["copies"]["h2d"]["pinned_bytes"] is None


@pytest.mark.parametrize(
    "maker",
    [
        makers.dense_off_on,
        makers.moe_off_on,
        makers.imported_without_passes,
        makers.passes_without_events,
        makers.interrupted,
        makers.empty,
    ],
)
def test_the_json_contract_holds_for_every_kind_of_capture(tmp_path: Path, maker: Any) -> None:
    report = build_report(maker(tmp_path / "c")).to_json()
    numbers = [leaf for leaf in walk(report) if isinstance(leaf, float)]
    assert all(map(math.isfinite, numbers))
    assert {leaf.__class__ for leaf in walk(report)} <= {int, float, str, bool, type(None)}
    for cell in report["cells"]:
        assert set(cell["against_baseline"]) == set(cell["arms"]) - {cell["baseline"]}
        for arm in cell["arms"].values():
            for figures in (arm, arm["prefill"], arm["decode"]):
                assert set(FIGURES) <= set(figures)
    for device in report["devices"]:
        assert set(device["copies"]) == set(DIRECTIONS)
    assert report["summary"]


def test_prefetch_that_gives_up_the_selective_copy(tmp_path: Path) -> None:
    report = build_report(makers.moe_off_on(tmp_path / "c"))
    (cell,) = report.cells
    ttft = cell.against_baseline["on"]["ttft_ns"]
    assert ttft is not None
    assert ttft.verdict == "slower"
    assert ttft.ratio == pytest.approx(160 / 85)
    assert "on gives up the selective copy, which saved off 5.86 KiB: it copied 4.00 times the bytes." in report.summary


def test_an_import_without_passes_speaks_about_devices(tmp_path: Path) -> None:
    report = build_report(makers.imported_without_passes(tmp_path / "c"))
    assert (report.cells, report.baseline, report.dropped) == ([], None, {"negative": 2})
    assert report.cannot_say == ["which layer a copy belongs to"]
    told = "Process 4711, device 0: 7.81 KiB went to the device from pinned memory at 0.04 GB/s in 200 us"
    assert told in report.summary
    assert "on the stream of the kernels; 150 us of kernels hid 50.0 % of it, and copying takes" in report.summary
    assert "no kernel ran that could hide it" in report.summary


def test_the_summary_names_speed_bound_and_change(tmp_path: Path) -> None:
    summary = build_report(makers.dense_off_on(tmp_path / "c")).summary
    assert "off copied 46.9 KiB to the device at 0.08 GB/s (80 % of the link's 0.1 GB/s), 0 % of it hidden" in summary
    assert "50.0 % of it hidden behind compute" in summary
    assert "Copying bounds the prompt (on: 400 us of copying against 240 us of computing)" in summary
    assert "no overlap can bring on's prompt below 400 us; it took 462 us" in summary
    assert "on against off: 1.39 x as fast in time to first token, faster; 1.60 x as fast in decode, faster" in summary


def test_what_several_devices_did_beside_each_other_bounds_nothing(tmp_path: Path) -> None:
    writer = new_capture(tmp_path / "c", source="kineto")
    rows = {"kind": ["h2d", "compute"] * 2, "device": [0, 0, 1, 1], "stream": ["1", "2"] * 2, "bytes": [9, None] * 2}
    rows |= {"pass_id": [0] * 4, "t_start": [0] * 4, "t_end": [50, 100] * 2}
    writer.write_part("events", conform("events", rows), "part")
    writer.add_pass_row(0, PassKey("a", repetition=0), t_start=0, t_end=100)
    writer.finish()
    summary = build_report(Capture.open(tmp_path / "c")).summary
    assert "100 ns of copying against 200 ns of computing, summed over devices; it took 100 ns" in summary
    assert "no overlap" not in summary


@pytest.mark.parametrize(
    ("devices", "processes", "n_devices"),
    [([0, 0], [1, 2], 2), ([0, 1], [1, 1], 2), ([None, None], [1, 2], 2), ([0, 0], [1, 1], 1)],
)
def test_figures_of_two_devices_are_sums_whatever_the_devices_are_called(
    tmp_path: Path, devices: list[int | None], processes: list[int], n_devices: int
) -> None:
    """Two ranks that both call theirs GPU 0, each with 10 ms of copies and 10 ms of compute in a step of 21 ms."""
    ms = 10**6
    writer = new_capture(tmp_path / "c", source="kineto")
    rows: dict[str, list[Any]] = {"kind": ["h2d", "compute"] * 2, "stream": ["1", "2"] * 2, "bytes": [9, None] * 2}
    rows |= {
        name: [value for value in given for _ in range(2)]
        for name, given in (("device", devices), ("process", processes))
    }
    rows |= {"pass_id": [0] * 4, "t_start": [0, 10 * ms] * 2, "t_end": [10 * ms, 20 * ms] * 2}
    writer.write_part("events", conform("events", rows), "part")
    writer.add_pass_row(0, PassKey("a", repetition=0), t_start=0, t_end=21 * ms)
    writer.finish()
    report = build_report(Capture.open(tmp_path / "c"))
    assert report.cells[0].arms["a"].n_devices == n_devices
    sums = "20.0 ms of copying against 20.0 ms of computing, summed over devices; it took 21.0 ms"
    assert (sums in report.summary) == (n_devices == 2)
    assert ("no overlap can bring" in report.summary) == (n_devices == 1)


def _traced(path: Path, moved: list[int], copies_outside: bool = False, detail: str | None = None) -> Capture:
    """A pass for each of `moved` bytes, with a kernel and, where it moves any, a copy; passes are 100 ns apart."""
    rows: list[dict[str, Any]] = []
    writer = new_capture(path, source="kineto")
    for at, n_bytes in enumerate(moved):
        rows.append({"kind": "compute", "stream": "1", "pass_id": at, "t_start": 100 * at, "t_end": 100 * at + 50})
        if n_bytes:
            rows.append(
                rows[-1] | {"kind": "h2d", "stream": "2", "detail": detail, "bytes": n_bytes, "t_start": 100 * at + 50}
            )
            rows[-1]["t_end"] = 100 * at + 90
        writer.add_pass_row(at, PassKey("a", repetition=at), t_start=100 * at, t_end=100 * at + 100)
    if copies_outside:
        rows.append({"kind": "h2d", "stream": "2", "bytes": 9, "t_start": 10_000, "t_end": 10_100})
    columns = {name: [row.get(name) for row in rows] for name in ("kind", "stream", "pass_id", "bytes", "detail")}
    columns |= {name: [row[name] for row in rows] for name in ("t_start", "t_end")} | {"device": [0] * len(rows)}
    writer.write_part("events", conform("events", columns), "part")
    writer.finish()
    return Capture.open(path)


def test_a_median_of_no_bytes_does_not_mean_that_nothing_was_copied(tmp_path: Path) -> None:
    third = build_report(_traced(tmp_path / "third", [40, 0, 0] * 3))
    assert third.cells[0].arms["a"].median("bytes_h2d") == 0
    assert "a copied to the device in 3 of 9 passes, 0 % of it hidden behind compute." in third.summary
    assert "no copy" not in third.summary
    none = "a: no copy from host to device was recorded"
    assert f"{none} (kernels that read host memory" in build_report(_traced(tmp_path / "none", [0] * 3)).summary
    outside = build_report(_traced(tmp_path / "outside", [0] * 3, copies_outside=True)).summary
    assert "a: none of the copies to the device that were recorded lies in its passes." in outside
    migrated = build_report(_traced(tmp_path / "pages", [4] * 3, detail="uvm")).summary
    assert f"{none} but pages that migrate." in migrated


def test_interrupted_and_empty_captures_say_so(tmp_path: Path) -> None:
    interrupted = build_report(makers.interrupted(tmp_path / "a"))
    assert any("6 completed passes" in warning for warning in interrupted.warnings)
    ttft = interrupted.cells[0].against_baseline["on"]["ttft_ns"]
    assert ttft is not None
    assert ttft.verdict == "inconclusive"
    empty = build_report(makers.empty(tmp_path / "b"))
    assert empty.cells == []
    assert "nothing to judge" in empty.summary
    warming = build_report(makers.killed_while_warming_up(tmp_path / "c"))
    assert "no measured pass was completed, and passes for warming up measure nothing." in warming.summary


def test_one_arm_alone_has_figures_and_no_verdict(tmp_path: Path) -> None:
    writer = new_capture(tmp_path / "c")
    writer.plan_pass(0, PassKey("off", 4, 0, 8, 2, 0, 0, 0))
    writer.record_pass(0, makers.dense_result())
    (cell,) = build_report(Capture.open(tmp_path / "c")).cells
    assert (cell.against_baseline, cell.same_tokens, cell.bit_identical) == ({}, None, None)
    ttft = cell.arms["off"].figures["pass"]["ttft_ns"]
    assert ttft is not None
    assert (ttft.median, ttft.low, ttft.n) == (640_000, None, 1)


def test_logits_that_differ_are_a_fault(tmp_path: Path) -> None:
    (cell,) = build_report(makers.dense_off_on(tmp_path / "c", n_pairs=1, digests=("a", "b"))).cells
    assert (cell.same_tokens, cell.bit_identical) == (True, False)
    told = ["LOGITS DIFFER: on and arms that compute in the same places are not bit-identical."]
    assert cell.faults == [*told, "Trust no time of arms that differ so."]
    assert cell.notes == []


def test_arms_that_decode_elsewhere_are_compared_with_their_like(tmp_path: Path) -> None:
    """`off` and `on` compute small ubatches on the host here, `full` and `cache` nothing."""
    writer = new_capture(tmp_path / "c")
    for order, (arm, digest) in enumerate([("off", "a"), ("on", "a"), ("full", "b"), ("cache", "b")]):
        result = makers.dense_result(arm)
        result.logits_digest = digest
        if arm in ("off", "on"):
            result.events.append(replace(result.events[-1], kind="cpu_compute", stream="host"))
        writer.plan_pass(order, PassKey(arm, 4, 0, 8, 2, 0, order, 0))
        writer.record_pass(order, result)
    (cell,) = build_report(Capture.open(tmp_path / "c")).cells
    assert cell.bit_identical is True
    assert cell.notes == ["Logits are compared among arms that compute in the same places: off, on; full, cache."]


def test_the_host_rounds_differently_and_is_left_out(tmp_path: Path) -> None:
    writer = new_capture(tmp_path / "c", arms=[ManifestArm(name) for name in ("off", "on", "cpu")])
    for order, (arm, digest, tokens) in enumerate([("off", "a", [5, 7]), ("on", "a", [5, 7]), ("cpu", "b", [5, 8])]):
        row = {"tokens": tokens, "logits_digest": digest, "ttft_ns": 10}
        writer.add_pass_row(order, PassKey(arm, repetition=0, order=order, boot=0), **row)
    (cell,) = build_report(Capture.open(tmp_path / "c")).cells
    assert (cell.same_tokens, cell.bit_identical) == (False, True)
    assert cell.notes == [
        "cpu generated other tokens than off (cpu computes on the host, which rounds differently).",
        "Logits are compared among arms that compute in the same places: off, on; cpu.",
    ]
    assert cell.faults == []


def test_arms_that_compute_on_the_host_are_not_said_to_be_compared_with_each_other(tmp_path: Path) -> None:
    """What each of them divides differs, and so do its roundings."""
    writer = new_capture(tmp_path / "c", arms=[ManifestArm(name) for name in ("off", "both", "cpu")])
    for order, (arm, digest) in enumerate([("off", "a"), ("both", "b"), ("cpu", "c")]):
        row = {"tokens": [5], "logits_digest": digest, "ttft_ns": 10}
        writer.add_pass_row(order, PassKey(arm, repetition=0, order=order, boot=0), **row)
    (cell,) = build_report(Capture.open(tmp_path / "c")).cells
    assert (cell.same_tokens, cell.bit_identical, cell.faults) == (True, None, [])
    assert cell.notes == ["Logits are compared among arms that compute in the same places: off; both; cpu."]


def test_a_baseline_on_the_host_excuses_other_tokens(tmp_path: Path) -> None:
    writer = new_capture(tmp_path / "c", arms=[ManifestArm(name) for name in ("cpu", "off", "both")])
    for order, (arm, tokens) in enumerate([("cpu", [5, 7]), ("off", [5, 8]), ("both", [5, 9])]):
        writer.add_pass_row(order, PassKey(arm, repetition=0, order=order, boot=0), tokens=tokens, ttft_ns=10)
    (cell,) = build_report(Capture.open(tmp_path / "c")).cells
    told = "off and both generated other tokens than cpu (cpu computes on the host, which rounds differently)."
    assert (cell.faults, cell.notes) == ([], [told])


def test_other_tokens_that_nothing_excuses_are_a_fault(tmp_path: Path) -> None:
    writer = new_capture(tmp_path / "c", arms=[ManifestArm(name) for name in ("off", "on")])
    for order, (arm, tokens) in enumerate([("off", [5, 7]), ("on", [5, 8])]):
        writer.add_pass_row(order, PassKey(arm, repetition=0, order=order, boot=0), tokens=tokens, ttft_ns=10)
    (cell,) = build_report(Capture.open(tmp_path / "c")).cells
    assert cell.faults[0] == "TOKENS DIFFER: on and off compute in the same places."


def test_passes_of_other_repetitions_are_not_compared(tmp_path: Path) -> None:
    """Every repetition has its own prompt: `off` 0 and `on` 1 may differ."""
    writer = new_capture(tmp_path / "c")
    for order, (arm, repetition) in enumerate([("off", 0), ("on", 1)]):
        writer.add_pass_row(order, PassKey(arm, repetition=repetition, boot=0), tokens=[order], ttft_ns=1)
    (cell,) = build_report(Capture.open(tmp_path / "c")).cells
    assert cell.same_tokens is None
    assert cell.against_baseline["on"]["ttft_ns"] is None


def test_other_tokens_of_experts_are_other_work(tmp_path: Path) -> None:
    writer = new_capture(tmp_path / "c")
    for order in range(12):
        arm, repetition = ("off", "cpu")[order % 2], order // 2
        key = PassKey(arm, n_gen=2, repetition=repetition, order=order, boot=0)
        writer.add_pass_row(order, key, tokens=[5, order % 2], decode_ns=100 + order % 2, ttft_ns=100)
        writer.write_part("experts", {"pass_id": [order], "distinct": [1], "n_experts": [2]}, f"pass-{order:06d}")
    (cell,) = build_report(Capture.open(tmp_path / "c")).cells
    decode, ttft = (cell.against_baseline["cpu"][name] for name in ("decode_tokens_per_s", "ttft_ns"))
    assert decode is not None
    assert ttft is not None
    assert "different workload" in (decode.reason or "")
    assert ttft.verdict == "no difference", "the prompt was the same"


def test_noise_is_the_callers(tmp_path: Path) -> None:
    capture = makers.dense_off_on(tmp_path / "c")
    ttft = build_report(capture, noise=0.5).cells[0].against_baseline["on"]["ttft_ns"]
    assert ttft is not None
    assert ttft.verdict == "no difference"


def test_the_manifests_first_arm_is_the_baseline(tmp_path: Path) -> None:
    capture = makers.dense_off_on(tmp_path / "c", n_pairs=1)
    manifest = capture.manifest.with_changes(arms=capture.manifest.arms[::-1])
    (tmp_path / "c" / "manifest.json").write_bytes(manifest.to_json())
    assert build_report(Capture.open(tmp_path / "c")).baseline == "on"


def test_what_is_noted_of_several_arms_is_said_once(tmp_path: Path) -> None:
    capture = makers.dense_off_on(tmp_path / "c")
    arms = [replace(arm, notes=["slow memory.", f"{arm.name} alone", "known"]) for arm in capture.manifest.arms]
    capture.manifest = replace(capture.manifest, arms=arms, warnings=["known"])
    warnings = build_report(capture).warnings
    assert [text for text in warnings if text.startswith("Arm")] == [
        "Arms off, on: slow memory.",
        "Arm off: off alone.",
        "Arm on: on alone.",
    ]
    assert warnings.count("known") == 1


def test_a_small_models_size_is_no_zero(tmp_path: Path) -> None:
    capture = makers.dense_off_on(tmp_path / "c")
    capture.manifest = replace(capture.manifest, model={"name": "tiny", "n_bytes": 744_288})
    assert build_report(capture).model == "tiny, 727 KiB"
