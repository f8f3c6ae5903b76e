"""The Memory page: what is unknown is not told as none, and what the device held counts the bank."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboard.text import about_layers
from executor.policies.base import PolicyOptions
from executor.units import format_bytes
from profiler.importers import import_files
from profiler.planning.request import PlacementOptions
from profiler.report.build import build_report
from tests.dashboard.pages import open_page, said
from tests.profiler import makers
from tests.profiler.runs import make_capture, small_request

DATA = Path(__file__).parents[1] / "data"


def test_a_source_that_names_no_slots_is_said_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import_files([DATA / "kineto" / "h200_llama8b_4layers_on.json.gz"], tmp_path / "c")
    text = said(open_page(monkeypatch, tmp_path, "memory"))
    assert "copied nothing into slots" not in text
    assert "This source does not say which slot a copy went into" in text


def test_where_no_copies_were_recorded_slots_are_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    makers.passes_without_events(tmp_path / "llama-bench")
    make_capture(tmp_path / "totals", small_request(recorder="off"))
    for name in ("llama-bench", "totals"):
        text = said(open_page(monkeypatch, tmp_path, "memory", capture=name))
        assert "copied nothing into slots" not in text
        assert "No copies of this pass were recorded" in text


def test_an_arm_that_streams_nothing_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_capture(tmp_path / "c", small_request(arms=("off", "full")))
    assert "full copied nothing into slots" in said(open_page(monkeypatch, tmp_path, "memory"))


def test_over_time_counts_the_bank_and_leads_to_the_reports_peak(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    policy = PolicyOptions(cache_bytes=1 << 20)
    request = small_request(model="tiny-moe", arms=("off", "hot+cache"), policy=policy, repetitions=1)
    passes = make_capture(tmp_path / "c", request).passes
    row = passes[~passes["warmup"] & (passes["arm"] == "hot+cache")].iloc[0]
    text = said(open_page(monkeypatch, tmp_path, "memory", b="hot+cache", arm="hot+cache"))
    (told,) = (line for line in text.splitlines() if line.startswith("Weights that stay, the bank and"))
    assert row["vram_bank"] > 0
    assert f"The device's peak, {format_bytes(float(row['vram_peak']))}, also counts" in told


def test_the_cost_in_layers_is_the_reports_for_each_placement(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second placement's layers are smaller: the same arm's slots would keep more or fewer of them resident."""
    placements = (PlacementOptions(overrides="ffn_=CPU"), PlacementOptions(overrides="ffn_up=CPU"))
    capture = make_capture(tmp_path / "c", small_request(arms=("off", "on"), placements=placements, repetitions=1))
    told = build_report(capture).residency
    text = said(open_page(monkeypatch, tmp_path, "memory", a="on", b="on@2"))
    costs = {arm: about_layers(told[arm].cost_in_layers or 0, "more ") for arm in ("on", "on@2")}
    for arm, cost in costs.items():
        (sentence,) = (line for line in text.splitlines() if line.startswith(f"{arm} reserves"))
        assert f"room in which {cost} could stay resident" in sentence
    by_first = told["on@2"].slots_bytes / (told["on"].host_bytes / len(told["on"].host_layers))
    assert costs["on@2"] != about_layers(by_first, "more ")
