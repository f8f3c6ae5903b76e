"""The Overview's answers: from which ubatch, at what cost, and why; and which layers stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from dashboard import placements
from dashboard.choice import first_choice, nearest_cell
from dashboard.overview import answers, ranking
from dashboard.overview.answers import bound_sentence
from dashboard.overview.sparkline import against, in_words, over_ubatches, sparkline, tells
from dashboard.overview.spent import telling_scope
from profiler.arithmetic.stats import Comparison, Estimate, Verdict
from profiler.capture import CaptureSummary
from profiler.metrics import FIGURES
from profiler.report.cells import ArmFigures, Cell, CellSizes
from profiler.report.from_which_size import from_which_size
from profiler.report.residency import Residency
from profiler.report.sweep import BATCH, PROMPT, UBATCH, axes_of, rows_over, sweep_figures
from tests.dashboard.pages import open_page, said
from tests.profiler import makers


def arm(**medians: float | None) -> ArmFigures:
    known = {name: None if value is None else Estimate(value, None, None, 6) for name, value in medians.items()}
    unknown: dict[str, Estimate | None] = dict.fromkeys(FIGURES)
    return ArmFigures({"pass": unknown | known, "prefill": unknown, "decode": unknown}, 6)


def cell(n_ubatch: int, ratio: float, verdict: Verdict, n_prompt: int = 4096) -> Cell:
    compared: dict[str, Comparison | None] = {"ttft_ns": Comparison(ratio, ratio * 0.98, ratio * 1.02, 6, verdict)}
    times = {"off": arm(ttft_ns=1e9), "on": arm(ttft_ns=ratio * 1e9)}
    return Cell(n_prompt, 0, n_ubatch, 0, times, {"on": compared}, None, None)


def test_an_arm_that_is_faster_in_decode_alone_is_not_hidden() -> None:
    """Where arms did A's work in the prompt, decode ranks them, and is what the bars open on."""
    same = Comparison(1.0, None, None, 6, "inconclusive", "same work: prefill ran as off in both")
    other = Comparison(3.0, None, None, 6, "inconclusive", "different workload: other tokens were generated")
    decodes = {"cache": Comparison(2.0, 1.9, 2.1, 6, "faster"), "slow": Comparison(0.5, 0.4, 0.6, 6, "slower")}
    compared: dict[str, dict[str, Comparison | None]] = {
        name: {"prefill_tokens_per_s": same, "decode_tokens_per_s": one} for name, one in decodes.items()
    }
    compared["both"] = {"prefill_tokens_per_s": same, "decode_tokens_per_s": other}
    compared["on"] = {"prefill_tokens_per_s": Comparison(1.5, 1.4, 1.6, 6, "faster"), "decode_tokens_per_s": same}
    names = ["off", "slow", "cache", "both", "on"]
    speeds = {"prefill_tokens_per_s": 100, "decode_tokens_per_s": 10}
    arms = {name: arm(**speeds, ttft_ns=4, wall_ns=10 if name == "on" else 6) for name in names}
    one = Cell(512, 16, 512, 0, arms, compared, None, None)
    assert ranking.ranked(one, []) == ["on", "both", "cache", "off", "slow"]
    table = ranking.ranking_table(one, names)
    assert table["decode, times as fast"].tolist()[1:4] == [0.5, 2.0, 3.0]
    assert [telling_scope(one, name) for name in ("on", "cache", None)] == ["prefill", "decode", "pass"]
    mostly = replace(one, arms=arms | {"on": arm(ttft_ns=6, wall_ns=10), "cache": arm(ttft_ns=4, wall_ns=10)})
    assert [telling_scope(mostly, name) for name in ("on", "cache")] == ["pass", "pass"], "it shows that part itself"


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (
            [cell(64, 2.0, "slower"), cell(128, 0.5, "faster")],
            "faster than off from a ubatch of about 91 tokens (95 %",
        ),
        (
            [cell(64, 0.5, "faster"), cell(128, 2.0, "slower")],
            "slower than off from a ubatch of about 91 tokens (95 %",
        ),
        (
            [cell(34, 2.0, "slower"), cell(2048, 0.9, "faster")],
            "is faster than off from a ubatch somewhere between 34 and 2,048 tokens (-ub 64-1024*2 "
            "would tell), slower below.",
        ),
        (
            [cell(2048, 2.0, "slower", n_prompt=100), cell(2048, 0.9, "faster", n_prompt=250)],
            "between 100 and 250 tokens (-p 128 would tell), slower below. That is with each prompt as one ubatch.",
        ),
        ([cell(64, 0.5, "faster"), cell(256, 0.6, "faster")], "is faster than off at every ubatch measured, 64 to 256"),
        ([cell(64, 1.0, "no difference"), cell(256, 1.0, "no difference")], "takes as long as off at every ubatch"),
        (
            [cell(64, 0.9, "faster"), cell(128, 1.1, "slower"), cell(256, 0.9, "faster")],
            "by tokens a ubatch: faster at 64 and 256; slower at 128.",
        ),
        (
            [cell(64, 1.002, "no difference"), cell(128, 0.8, "faster")],
            "by tokens a ubatch: no difference at 64; faster at 128.",
        ),
        (
            [cell(64, 1.1, "slower"), cell(128, 0.9, "faster"), cell(256, 0.8, "inconclusive")],
            "is faster than off from a ubatch of about 89 tokens (95 % interval 83 to 95), slower below.",
        ),
        (
            [cell(64, 1.1, "slower"), cell(128, 0.995, "no difference"), cell(256, 0.8, "faster")],
            " of about 124 tokens (95 % interval 108 to 134), slower below; no difference at 128.",
        ),
        ([cell(512, 0.5, "faster", n_prompt=34)], "Only ubatches of 34 tokens were measured"),
        (
            [cell(2048, 2.0, "slower", n_prompt=64), cell(2048, 0.5, "faster", n_prompt=256)],
            "That is with each prompt as one ubatch.",
        ),
    ],
)
def test_from_which_ubatch(cells: list[Cell], told: str) -> None:
    found = from_which_size(cells, cells[-1], "off", "on")
    assert found is not None
    assert told in found.sentence("Prefetch")


def test_nothing_judged_is_no_answer() -> None:
    lonely = Cell(8, 0, 4, 0, {"off": arm(), "on": arm()}, {"on": {}}, None, None)
    assert from_which_size([lonely], lonely, "off", "on") is None
    assert answers.cost(lonely, "off", "on", {}) is None
    assert answers.why(lonely, "off", "on") is None


def test_cost_names_bytes_memory_and_layers() -> None:
    before = arm(bytes_h2d=32e9, vram_peak_bytes=30e9, selective_saving_bytes=6e9)
    after = arm(bytes_h2d=38e9, vram_peak_bytes=31e9, selective_saving_bytes=0.0)
    pair = Cell(8, 0, 4, 0, {"off": before, "on": after}, {}, None, None)
    placed = {
        name: Residency([1], 2, 10, 10, slots, slots * 10, 0, float(slots)) for name, slots in (("off", 1), ("on", 2))
    }
    assert answers.cost(pair, "off", "on", placed) == (
        "5.59 GiB more to copy (35.4 GiB instead of 29.8 GiB, for it gives up the selective copy) and 954 MiB more of "
        "device memory at the peak. The slots of on take the room of 2 layers that could stay resident (the "
        "baseline's: 1 layer)."
    )
    elsewhere = answers.cost(pair, "off", "on", placed, same_placement=False) or ""
    told = "5.59 GiB more to copy (35.4 GiB instead of 29.8 GiB) and"
    assert elsewhere.startswith(told), "the placement may explain it"
    same = Cell(8, 0, 4, 0, {"off": before, "on": before}, {}, None, None)
    assert answers.cost(same, "off", "on", {}) == "No more bytes to copy and no more device memory."


@pytest.mark.parametrize(
    ("copy_ms", "exposed_ms", "told"),
    [
        (
            700,
            300,
            "With on, 300 ms of its 700 ms of copying is exposed, beside no compute; with off, all of its 500 ms.",
        ),
        (0, 0, "on copies nothing to the device, where off copies for 500 ms; it computes for 420 ms."),
    ],
)
def test_why(copy_ms: float, exposed_ms: float, told: str) -> None:
    off = arm(busy_copy_ns=500e6, busy_compute_ns=400e6, exposed_copy_ns=500e6)
    on = arm(busy_copy_ns=copy_ms * 1e6, busy_compute_ns=420e6, exposed_copy_ns=exposed_ms * 1e6)
    assert told in (answers.why(Cell(8, 0, 4, 0, {"off": off, "on": on}, {}, None, None), "off", "on") or "")


def test_a_median_of_no_copying_is_not_said_of_every_pass() -> None:
    on = replace(arm(busy_copy_ns=0.0, busy_compute_ns=420e6), n_copying=2)
    off = arm(busy_copy_ns=500e6, busy_compute_ns=400e6, exposed_copy_ns=500e6)
    pair = Cell(8, 0, 4, 0, {"off": off, "on": on}, {}, None, None)
    assert "on copies nothing to the device in 4 of 6 passes" in (answers.why(pair, "off", "on") or "")
    assert "; on copied nothing to the device in 4 of 6 passes." in (answers.why(pair, "on", "off") or "")


@pytest.mark.parametrize(
    ("copy_ms", "compute_ms", "host_ms", "ttft_ms", "told"),
    [
        (136, 82, 0, 194, "Its prompt takes 194 ms: 136 ms of copies and 82.0 ms of compute, neither of which bounds"),
        (136, 82, 0, 140, "Its copies bound the prompt, which takes 140 ms: 136 ms of copies and 82.0 ms of compute."),
        (82, 136, 0, 140, "Its compute bounds the prompt, which takes 140 ms"),
        (136, 130, 0, 140, "Its copies and compute bound the prompt, which takes 140 ms"),
        (30, 20, 136, 140, "Its computing on the host bounds the prompt"),
        (30, 20, 60, 140, "30.0 ms of copies, 20.0 ms of compute and 60.0 ms of computing on the host, none of which"),
        (300, 20, 0, 160, "Its prompt holds 300 ms of copies and 20.0 ms of compute, summed over devices."),
    ],
)
def test_what_bounds_is_told_of_the_prompt_alone(
    copy_ms: float, compute_ms: float, host_ms: float, ttft_ms: float, told: str
) -> None:
    whole = arm(ttft_ns=ttft_ms * 1e6, busy_copy_ns=copy_ms * 9e6, busy_compute_ns=compute_ms * 9e6, wall_ns=9e9)
    prompt = arm(busy_copy_ns=copy_ms * 1e6, busy_compute_ns=compute_ms * 1e6, host_compute_ns=host_ms * 1e6)
    parts = {"pass": whole.figures["pass"], "prefill": prompt.figures["pass"], "decode": {}}
    assert told in (bound_sentence(ArmFigures(parts, 6)) or "")  # type: ignore[arg-type]


def test_a_pass_without_a_prompt_is_held_against_its_wall() -> None:
    on = arm(busy_copy_ns=14.4e6, busy_compute_ns=30.2e6, wall_ns=35.1e6)
    told = "Its compute bounds the pass, which takes 35.1 ms: 14.4 ms of copies and 30.2 ms of compute."
    assert bound_sentence(on) == told
    assert bound_sentence(arm(busy_copy_ns=1e6)) is None


def test_what_is_unknown_of_the_hiding_is_not_none() -> None:
    off = arm(busy_copy_ns=500e6, busy_compute_ns=400e6)
    on = arm(busy_copy_ns=600e6, busy_compute_ns=400e6)
    told = answers.why(Cell(8, 0, 4, 0, {"off": off, "on": on}, {}, None, None), "off", "on")
    assert "With on, an unknown part of its 600 ms" in (told or "")


def test_overview_tells_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    makers.dense_off_on(tmp_path / "c")
    text = said(open_page(monkeypatch, tmp_path, "overview"))
    assert "**From which ubatch:** Only ubatches of 4 tokens were measured" in text
    assert "**What it costs:** No more bytes to copy" in text
    assert "**Why:** With on, 300 us of its 600 us of copying is exposed" in text


def test_axes_of_a_sweep_over_prompts() -> None:
    cells = [cell(2048, 1.4, "slower", n_prompt=64), cell(2048, 0.9, "faster", n_prompt=256)]
    rows = sweep_figures([*cells, cell(2048, 0.8, "faster", n_prompt=4096)], "ttft_ns")
    chosen = CellSizes(4096, 0, 2048, 0, ("off", "on"))
    assert axes_of(rows, chosen) == [PROMPT]
    assert rows_over(rows, PROMPT, chosen)["n_prompt"].unique().tolist() == [64, 256, 4096]
    assert rows_over(rows, BATCH, chosen)["n_ubatch"].unique().tolist() == [64, 256], "4096 tokens are two ubatches"
    assert len(rows_over(rows, UBATCH, chosen)) == 2


def test_choosing_one_size_keeps_the_others_where_it_can() -> None:
    cells = [CellSizes(512, 16, ubatch, depth, ()) for ubatch in (64, 128) for depth in (0, 4096)]
    deep = nearest_cell(cells, cells[0], "n_depth", 4096)
    assert (deep.n_ubatch, deep.n_depth) == (64, 4096)
    lonely = CellSizes(512, 16, 256, 0, ())
    assert nearest_cell([*cells, lonely], cells[1], "n_ubatch", 256) == lonely, "there is no deeper one"


def test_a_cards_line_is_over_ubatches_and_shows_no_chance_as_a_slope() -> None:
    cells = [cell(ubatch, 0.5, "faster") for ubatch in (256, 64, 128)]
    for each, ms in zip(cells, (10, 30, 20), strict=True):
        each.arms["on"] = arm(ttft_ns=ms * 1e6, prefill_tokens_per_s=100 + ms / 10)
    other = replace(cells[0], n_depth=4096)
    line = over_ubatches([*cells, other], cells[0], "on", "ttft_ns")
    assert line == {64: 30e6, 128: 20e6, 256: 10e6}
    assert tells(line)
    assert not tells(over_ubatches(cells, cells[0], "on", "prefill_tokens_per_s")), "2 % of noise"
    assert not tells(over_ubatches(cells[:1], cells[0], "on", "ttft_ns"))


def test_a_cards_line_says_how_b_compares_with_a() -> None:
    line = against({64: 30e6, 128: 20e6, 256: 9e6}, {64: 60e6, 128: 10e6}, "ttft_ns")
    assert line == {64: 0.5, 128: 2.0}, "of times, less is faster"
    assert against({64: 30.0}, {64: 60.0}, "bytes_h2d") == {64: 2.0}
    drawn = sparkline(line, 128, 1.0)
    assert (drawn.count("<polyline"), drawn.count("<circle"), drawn.count("<line")) == (1, 1, 1)
    assert "<circle" not in sparkline(line, 512, 1.0)
    told = "on, times as fast as off over ubatches of 64 to 128 tokens: 0.50 to 2.00; dashed: 1."
    assert in_words(line, "ttft_ns", ["off", "on"]) == told


def test_the_newest_complete_capture_of_two_arms_is_opened_first() -> None:
    def listed(name: str, state: str, *arms: str) -> CaptureSummary:
        return CaptureSummary(name, name, state, "hprof", "tiny", list(arms), None, 2)

    running, single = listed("a", "running", "off", "on"), listed("b", "complete", "off")
    assert first_choice([running, single, listed("c", "complete", "off", "on")]) == 2
    assert first_choice([running, single]) == 0


def test_which_layers_stay() -> None:
    part = Residency([1, 2, 5], 6, 30_000_000, 50_000_000, 2, 20_000_000, 0, 2.0)
    whole = Residency([], 6, 0, 80_000_000, 0, 0, 0, None)
    assert placements.residency_sentence("on", part) == (
        "on keeps 3 of 6 layers (0, 3-4) wholly resident; the host holds weights of 3 (1-2, 5), 28.6 MiB."
    )
    assert placements.residency_sentence("full", whole) == "full keeps every layer resident, 76.3 MiB."
    told = placements.residency_table({"on": part, "full": whole})
    assert isinstance(told, pd.DataFrame)
    assert told["layers with weights in host memory"].tolist() == ["1-2, 5", "none"]
