"""The closing paragraph's sentences about bytes, layers and bounds, on figures that are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiler.arithmetic.stats import estimate
from profiler.capture import Capture
from profiler.manifest import ManifestArm
from profiler.report.blocks import cell_tables
from profiler.report.build import build_report
from profiler.report.report import Report
from profiler.report.residency import Residency
from profiler.report.summary import summarise
from profiler.storage.writer import PassKey, new_capture
from tests.profiler import makers

PLACED = Residency([0, 1], 4, 2000, 2000, 1, 1000, 0, 1.0)


def _with(report: Report, arm: str, scope: Any, **figures: float) -> Report:
    (cell,) = report.cells
    changed = {name: estimate([value] * 6) for name, value in figures.items()}
    held = cell.arms[arm]
    told = {**held.figures, scope: {**held.figures[scope], **changed}}
    return replace(report, cells=[replace(cell, arms={**cell.arms, arm: replace(held, figures=told)})])


@pytest.mark.parametrize(
    ("copied", "saved", "said"),
    [
        (8000.0, 0.0, "on gives up the selective copy, which saved off 5.86 KiB: it copied 4.00 times the bytes."),
        (2200.0, 5800.0, "on copied 1.10 times the bytes of off."),
        (2004.0, 5996.0, None),
        (1900.0, 6100.0, None),
    ],
)
def test_an_arm_that_copies_more_gives_up_all_or_some(
    tmp_path: Path, copied: float, saved: float, said: str | None
) -> None:
    report = build_report(makers.moe_off_on(tmp_path / "c"))
    summary = summarise(_with(report, "on", "pass", bytes_h2d=copied, selective_saving_bytes=saved))
    assert said is None or said in summary
    assert said is not None or "times the bytes" not in summary


@pytest.mark.parametrize(
    ("on", "said"),
    [
        (
            replace(PLACED, host_layers=[0, 1, 2], slots=2, slots_bytes=2000),
            "Its slots take 1,000 B more, so it keeps 1",
        ),
        (
            replace(PLACED, host_layers=[0, 1, 2, 3], bank_bytes=2000),
            "Its slots and bank take 1.95 KiB more, so it keeps 2",
        ),
        (replace(PLACED, slots=2, slots_bytes=2000), None),
    ],
)
def test_layers_that_slots_and_bank_displace_are_said(tmp_path: Path, on: Residency, said: str | None) -> None:
    report = build_report(makers.dense_off_on(tmp_path / "c"))
    summary = summarise(replace(report, residency={"off": PLACED, "on": on}))
    assert said is None or said in summary
    assert ("fewer resident" in summary) == (said is not None)


def _two_placements(path: Path) -> Capture:
    """`off`, `on` and `full`, then `off` and `on` with one host layer more: a pass takes 60, 50, 30, 100 and 80 us."""
    took = {"off": 60, "on": 50, "full": 30, "off@2": 100, "on@2": 80}
    arms = [
        ManifestArm(name, name.partition("@")[0], options={"placement": "-ncmoe 16" if "@" in name else "-ncmoe 8"})
        for name in took
    ]
    writer = new_capture(path, arms=arms)
    for number, (name, took_us) in enumerate(took.items()):
        for repetition in range(6):
            order = number * 6 + repetition
            key = PassKey(name, 512, 0, 512, 0, repetition, order, 0)
            times = {"ttft_ns": took_us * 1000 + repetition, "prefill_ns": took_us * 1000 + repetition}
            writer.add_pass_row(order, key, **times, bytes_h2d={"off@2": 2000, "full": 0}.get(name, 1000))
    writer.finish()
    return Capture.open(path)


def test_arms_of_a_further_placement_are_held_against_its_own_first(tmp_path: Path) -> None:
    report = build_report(_two_placements(tmp_path / "c"))
    (cell,) = report.cells
    assert cell.own_baselines == {"on@2": "off@2"}
    assert cell.held_against("on@2") == ("off@2", cell.against_own["on@2"])
    assert cell.held_against("off@2") == ("off", cell.against_baseline["off@2"])
    told = report.to_json()["cells"][0]
    assert told["own_baselines"] == {"on@2": "off@2"}
    assert told["against_own_baseline"]["on@2"]["ttft_ns"]["ratio"] == pytest.approx(0.8, rel=1e-3)
    assert told["against_baseline"]["on@2"]["ttft_ns"]["ratio"] == pytest.approx(80 / 60, rel=1e-3)
    rows = [row for table in cell_tables(cell, 5) for row in table.rows if row[0] == "  x as fast as off@2"]
    assert len(rows) == 2, "time to first token and prefill speed"
    assert rows[0][-1].startswith("1.25")


def test_fewer_resident_layers_are_the_placements_doing_where_it_was_asked_for(tmp_path: Path) -> None:
    report = build_report(_two_placements(tmp_path / "c"))
    fewer = replace(PLACED, host_layers=[0, 1, 2])
    placed = {"off": PLACED, "on": replace(PLACED, slots=2), "off@2": fewer, "on@2": replace(fewer, slots=2)}
    summary = summarise(replace(report, residency=placed))
    assert "off@2 keeps 1 layer fewer resident and copied 2.00 times the bytes of off, as -ncmoe 16 asks." in summary
    assert "slots" not in summary


def test_the_best_arm_is_always_named(tmp_path: Path) -> None:
    report = build_report(_two_placements(tmp_path / "c"))
    best = "Shortest time to first token: on with 50.0 us (1.20 x as fast as off, faster; full: 30.0 us)"
    assert best in report.summary
    assert "1 more arm is in the table." in report.summary
    (cell,) = report.cells
    last = {name: cell.arms[name] for name in ("off", "full", "off@2", "on@2", "on")}
    summary = summarise(replace(report, cells=[replace(cell, arms=last)]))
    assert best in summary
    assert "on against off: 1.20 x as fast in time to first token" in summary
    assert "more arm" not in summary


def test_of_two_arms_the_verdict_says_which_is_best(tmp_path: Path) -> None:
    assert "Shortest" not in build_report(makers.dense_off_on(tmp_path / "c")).summary


def test_what_the_host_computes_may_be_the_bound(tmp_path: Path) -> None:
    report = build_report(makers.dense_off_on(tmp_path / "c"))
    summary = summarise(_with(report, "on", "prefill", host_compute_ns=450_000.0))
    assert "Computing on the host bounds the prompt (on: 400 us of copying against 240 us of computing" in summary
    assert "beside 450 us of computing on the host), so no overlap can bring on's prompt below 450 us" in summary


def test_the_distinct_share_is_told_by_phase(tmp_path: Path) -> None:
    """44 % of the experts at 34 tokens and 4 % a decode step have no mean worth a row."""
    report = build_report(makers.moe_off_on(tmp_path / "c"))
    for arm in ("off", "on"):
        report = _with(_with(report, arm, "prefill", distinct_share=0.44), arm, "decode", distinct_share=0.04)
    (table,) = cell_tables(report.cells[0], 5)
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["distinct prompt"] == ["44.0 %", "44.0 %"]
    assert rows["distinct decode"] == ["4.0 %", "4.0 %"]
    assert "distinct" not in rows


def test_over_cells_the_same_work_is_no_missing_verdict(tmp_path: Path) -> None:
    report = build_report(makers.dense_off_on(tmp_path / "c"))
    (cell,) = report.cells
    judged = cell.against_baseline["on"]
    told = judged["ttft_ns"]
    assert told is not None
    same = {"on": {**judged, "ttft_ns": replace(told, verdict="inconclusive", reason="same work: equal bytes")}}
    summary = summarise(replace(report, cells=[cell, replace(cell, against_baseline=same)]))
    assert "Over 2 cells, on: faster in 1, same work in 1." in summary
