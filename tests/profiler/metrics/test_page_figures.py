"""What the dashboard's pages draw beyond the report: time spent, sweeps, memory, experts, typical layers."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from profiler.cli.run_request import parse_numbers
from profiler.metrics import layer_figures, load_tables, pass_figures, ubatch_figures
from profiler.metrics.devices import TIME_PARTS, device_spent, time_spent
from profiler.metrics.experts import distinct_by_ubatch, expert_heat, uniform_curve
from profiler.metrics.layers import paying_share, prefetch_margin, saved_share, typical_layers, typical_ubatches
from profiler.metrics.memory import cost_in_layers, held_over_time, memory_parts, slot_holdings
from profiler.metrics.timeline import timeline
from profiler.report.build import build_report
from profiler.report.plain_values import device_as_json
from profiler.report.sweep import (
    Crossover,
    at_own_size,
    crosses_once,
    crossover,
    factor_grid,
    factors_as_fast,
    overlap_limit,
    sweep_figures,
)
from profiler.report.verdicts import OTHER_WORK, SAME_WORK
from profiler.storage.writer import conform
from tests.profiler import makers
from tests.profiler.makers import COMPUTE_US, COPY_US, N_COPIES, ON_HIDDEN_US, US


def test_time_spent_adds_up_to_the_wall(tmp_path: Path) -> None:
    capture = makers.dense_off_on(tmp_path / "c", n_pairs=1)
    figures = pass_figures(*load_tables(capture))["pass"]
    spent = time_spent(figures)
    assert spent[list(TIME_PARTS)].sum(axis=1).tolist() == pytest.approx(figures["wall_ns"].tolist())
    on = capture.passes.query("arm == 'on' and not warmup")["pass_id"].iloc[0]
    assert spent.loc[on, "hidden_ns"] == ON_HIDDEN_US * US
    assert spent.loc[on, "exposed_ns"] == (N_COPIES * COPY_US - ON_HIDDEN_US) * US
    assert spent.loc[on, "compute_ns"] == N_COPIES * COMPUTE_US * US - ON_HIDDEN_US * US


def test_the_share_that_is_saved_is_of_whole_copies() -> None:
    assert saved_share(60, 180) == 0.75
    assert saved_share(0, 0) is None


def test_device_time_of_an_import(tmp_path: Path) -> None:
    report = build_report(makers.imported_without_passes(tmp_path / "c"))
    spent = device_spent(report.devices)
    assert spent[["compute_ns", "hidden_ns", "exposed_ns"]].to_numpy()[0].tolist() == [50 * US, 100 * US, 100 * US]
    assert spent[["compute_ns", "exposed_ns"]].to_numpy()[1].tolist() == [0, 10 * US]


def test_sweep_has_a_row_an_arm_and_cell_with_its_limit(tmp_path: Path) -> None:
    report = build_report(makers.dense_off_on(tmp_path / "c"))
    rows = sweep_figures(report.cells, "ttft_ns").set_index("arm")
    assert rows.loc["on", "ratio"] == pytest.approx(report.cells[0].against_baseline["on"]["ttft_ns"].ratio)  # type: ignore[union-attr]
    assert rows["ratio"].isna().to_dict()["off"]
    # four copies of 100 us in prefill, against four computes of 60
    assert rows.loc["off", "limit"] == 4 * COPY_US * US
    arm = report.cells[0].arms["off"]
    assert overlap_limit(arm, "prefill_tokens_per_s", 8) == pytest.approx(8e9 / (4 * COPY_US * US))
    assert overlap_limit(arm, "decode_tokens_per_s", 8) is None


def ratios(values: list[float], spread: float = 0.0) -> pd.DataFrame:
    sizes = [64.0 * 2**i for i in range(len(values))]
    return pd.DataFrame(
        {
            "n_ubatch": sizes,
            "n_depth": 0.0,
            "n_prompt": 65536.0,
            "ratio": values,
            "ratio_low": [v - spread for v in values],
            "ratio_high": [v + spread for v in values],
            "verdict": "faster",
            "word": "faster",
        }
    )


def test_crossover_lies_where_the_ratio_passes_one_on_a_log_axis() -> None:
    found = crossover(ratios([1.25, 0.8]))
    assert found is not None
    assert found.n_ubatch == pytest.approx(64 * math.sqrt(2))
    wide = crossover(ratios([1.4, 1.1, 0.9, 0.7], spread=0.05))
    assert wide is not None
    assert wide.n_ubatch is not None
    assert wide.low is not None
    assert wide.high is not None
    assert wide.low < wide.n_ubatch < wide.high


def at_sizes(sizes: list[float], values: list[float], spread: float = 0.0) -> pd.DataFrame:
    return ratios(values, spread).assign(n_ubatch=sizes)


def test_between_sizes_far_apart_no_point_is_told() -> None:
    found = crossover(at_sizes([34, 2048], [1.8, 0.95], spread=0.01))
    assert found == Crossover(34, 2048, None, None, None)
    assert found.sizes_between == "64-1024*2"
    told = parse_numbers(found.sizes_between, "-p", 1)
    sizes = [34, *told, 2048]
    assert all(above <= 2 * below for below, above in pairwise(sizes)), "the next sweep has a point"
    near = crossover(at_sizes([34, 68], [1.8, 0.95], spread=0.01))
    assert near is not None
    assert near.n_ubatch is not None


def test_sizes_that_double_have_a_point_as_in_the_thread_tables() -> None:
    rows = at_sizes([512, 1024, 2048], [1.038, 0.997, 0.956])
    rows = rows.assign(ratio_low=[1.022, 0.988, 0.952], ratio_high=[1.057, 1.002, 0.966])
    found = crossover(rows)
    assert found is not None
    assert (found.n_ubatch, found.low, found.high) == pytest.approx((971, 799, 1070), rel=0.02)


@pytest.mark.parametrize(("below", "above", "told"), [(64, 256, "128"), (65, 131, "128"), (1, 8, "2-4*2")])
def test_sizes_to_measure_between(below: float, above: float, told: str) -> None:
    assert Crossover(below, above, None, None, None).sizes_between == told


def test_an_interval_that_ends_between_sizes_far_apart_reaches_the_next_one() -> None:
    found = crossover(at_sizes([64, 512, 1024, 8192], [1.09, 1.02, 0.98, 0.8], spread=0.03))
    assert found is not None
    assert found.n_ubatch is not None
    assert (found.low, found.high) == (64, 8192)
    assert 512 < found.n_ubatch < 1024


@pytest.mark.parametrize("values", [[1.2, 1.1], [0.9, 0.8], [1.3], [float("nan"), 0.9]])
def test_no_crossover_where_the_order_never_changes(values: list[float]) -> None:
    assert crossover(ratios(values)) is None


@pytest.mark.parametrize("word", [SAME_WORK, OTHER_WORK])
def test_sizes_without_an_order_say_nothing_of_a_crossover(word: str) -> None:
    rows = ratios([0.99, 1.01, 1.1, 0.8]).assign(word=[word, word, "slower", "faster"])
    found = crossover(rows)
    assert found is not None
    assert (found.below, found.above) == (256, 512)
    assert crosses_once(rows, found), "0.99 of the same work is chance"
    assert not crosses_once(rows.assign(word="faster"), found)
    assert crossover(rows.assign(word=[word, word, word, "faster"])) is None


def test_no_ubatch_is_larger_than_its_prompt() -> None:
    """With a prompt of 200 every setting from 256 up ran ubatches of 200: what differs among them is chance."""
    rows = ratios([1.2, 1.1, 0.9, 1.01, 0.99]).assign(n_prompt=200.0)
    found = crossover(rows)
    assert found is not None
    assert (found.below, found.above) == (128, 200)
    assert crosses_once(rows, found)
    assert at_own_size(rows)["n_ubatch"].tolist() == [64, 128, 200]
    assert at_own_size(rows.assign(n_prompt=float("nan")))["n_ubatch"].tolist() == [64, 128, 256, 512, 1024]


def test_where_one_side_is_no_difference_no_order_turns() -> None:
    alike, apart = ["no difference"] * 2, ["faster"] * 2
    assert crossover(ratios([1.001, 0.999, 0.9, 0.8]).assign(word=[*alike, *apart])) is None
    assert crossover(ratios([0.8, 0.9, 0.999, 1.001]).assign(word=[*apart, *alike])) is None
    assert crossover(ratios([1.1, 1.001, 0.999, 0.8]).assign(word=["slower", *alike, "faster"])) is not None


def test_as_fast_is_a_shorter_time_or_a_higher_rate() -> None:
    grid, verdicts = factor_grid(ratios([0.8, 1.25]), "ttft_ns")
    assert grid.to_numpy()[0].tolist() == pytest.approx([1.25, 0.8])
    assert verdicts.to_numpy()[0].tolist() == ["faster", "faster"]
    grid, _ = factor_grid(ratios([0.8, 1.25]), "prefill_tokens_per_s")
    assert grid.to_numpy()[0].tolist() == pytest.approx([0.8, 1.25])


def test_the_interval_of_how_fast_is_in_order_and_unknown_where_one_end_is() -> None:
    rows = ratios([0.8, 1.25], spread=0.1)
    rows.loc[1, "ratio_high"] = float("nan")
    found = factors_as_fast(rows, "ttft_ns")
    first, second = found[["fast_low", "fast", "fast_high"]].to_numpy().tolist()
    assert first == pytest.approx([1 / 0.9, 1.25, 1 / 0.7])
    assert [math.isnan(value) for value in second] == [True, False, True]


def test_memory_parts_and_what_they_cost(tmp_path: Path) -> None:
    parts = memory_parts(makers.dense_off_on(tmp_path / "c", n_pairs=1).passes)
    first = parts.iloc[0]
    assert (first["resident"], first["slots"], first["other"], first["peak"]) == (30_000, 16_000, 4_000, 50_000)
    assert math.isnan(first["bank"])
    assert cost_in_layers(16_000, host_bytes=40_000, n_host_layers=4) == pytest.approx(1.6)
    assert cost_in_layers(16_000, host_bytes=0, n_host_layers=0) is None


def test_slots_hold_a_layer_until_the_next_is_copied_in() -> None:
    rows = [(0, 0, 0, 10), (0, 0, 12, 20), (1, 1, 15, 25), (0, 2, 30, 40)]  # slot, layer, from, to
    columns = {
        "kind": ["h2d"] * 4 + ["compute"],
        "slot": [r[0] for r in rows] + [None],
        "layer": [r[1] for r in rows] + [2],
        "bytes": [5, 5, 7, 9, None],
        "t_start": [r[2] for r in rows] + [40],
        "t_end": [r[3] for r in rows] + [60],
        "correlation_id": [1, 2, 3, 4, None],
        "waits_for": [None] * 4 + [4],
    }
    held = slot_holdings(timeline(conform("events", columns), origin_ns=0))
    assert held[["slot", "layer", "bytes", "start_ns", "end_ns"]].to_numpy().tolist() == [
        [0, 0, 10, 0, 30],
        [0, 2, 9, 30, 60],
        [1, 1, 7, 15, 60],
    ]
    assert held["filled_ns"].tolist() == [20, 40, 25]
    known = held[["read_ns", "done_ns"]].dropna()
    assert known.to_numpy().tolist() == [[40, 60]], "the other copies' readers are not known"
    steps = held_over_time(held)
    assert steps.to_numpy().tolist() == [[0, 10], [15, 17], [30, 16], [60, 0]]
    assert held_over_time(slot_holdings(timeline(conform("events", {})))).empty


def test_a_layer_that_is_copied_again_for_the_next_ubatch_fills_its_slot_anew() -> None:
    """With as many slots as layers a slot only ever holds one, and no more of it than there is."""
    columns = {
        "kind": ["h2d"] * 3,
        "slot": [0] * 3,
        "layer": [7] * 3,
        "ubatch": [0, 0, 1],
        "bytes": [5, 6, 8],
        "t_start": [0, 10, 30],
        "t_end": [10, 20, 40],
    }
    held = slot_holdings(timeline(conform("events", columns), origin_ns=0))
    assert held[["bytes", "start_ns", "filled_ns", "end_ns"]].to_numpy().tolist() == [[11, 0, 20, 30], [8, 30, 40, 40]]


def test_experts_touched_and_used(tmp_path: Path) -> None:
    experts = makers.moe_off_on(tmp_path / "c", n_pairs=1).table("experts")
    rows = distinct_by_ubatch(experts)
    assert rows["distinct_share"].tolist() == [0.25, 0.25]
    assert rows["copied_share"].tolist() == [0.25, 1.0]
    layers, used = expert_heat(experts)
    assert layers.tolist() == [0]
    assert used.tolist() == [[1, 0, 1, 0, 0, 0, 0, 0]]
    assert uniform_curve(experts).empty


def test_uniform_curve_starts_at_one_tokens_share() -> None:
    columns = {"n_tokens": [1, 64], "n_experts": [8, 8], "distinct": [2, 8], "used": [b"\x03", b"\xff"]}
    curve = uniform_curve(conform("experts", columns))
    assert curve["share"].iloc[0] == 0.25
    assert curve["n_tokens"].iloc[-1] == 64
    assert curve["share"].iloc[-1] == pytest.approx(1 - 0.75**64)


def test_typical_layers_and_the_condition(tmp_path: Path) -> None:
    capture = makers.dense_off_on(tmp_path / "c", n_pairs=2)
    off = capture.passes.query("arm == 'off'")["pass_id"]
    tables = load_tables(capture)
    layers = layer_figures(tables.recording)
    layers = layers[layers["pass_id"].isin(off)]
    typical = typical_layers(layers[layers["ubatch"] == 0])
    assert typical["copy_ns"].tolist() == [COPY_US * US] * 2
    assert typical["copy_bound"].tolist() == [True, True]
    # C + T > T' for the first layer of each ubatch; the last has no next one
    margin = prefetch_margin(layers)
    assert margin.shape == (3, 1)
    assert np.unique(margin.to_numpy()).tolist() == [COMPUTE_US * US]
    assert paying_share(margin) == 1.0
    assert paying_share(margin.assign(other=[-1.0, 0.0, np.nan])) == 0.6, "of the places that the grid has"
    assert paying_share(margin.iloc[:0]) is None
    ubatches = ubatch_figures(tables.ubatches, tables.recording)
    assert typical_ubatches(ubatches[ubatches["pass_id"].isin(off)])["bytes_h2d"].tolist() == [16_000] * 3


def test_copies_that_were_not_recorded_are_unknown_and_not_none(tmp_path: Path) -> None:
    report = build_report(makers.imported_without_passes(tmp_path / "c"))
    bare = [replace(device, copies={}) for device in report.devices]
    assert device_spent(bare, tells_copies=False).isna().all(axis=None)
    assert device_spent(bare)["exposed_ns"].tolist() == [0.0] * len(bare)
    unknown = device_as_json(bare[0], tells_copies=False)["copies"]["h2d"]
    assert set(unknown) == set(device_as_json(bare[0])["copies"]["h2d"])
    assert set(unknown.values()) == {None}


def test_each_arm_has_its_own_number_of_devices(tmp_path: Path) -> None:
    figures = pass_figures(*load_tables(makers.dense_off_on(tmp_path / "c", n_pairs=1)))["pass"]
    of_two = time_spent(figures, pd.Series(2, index=figures.index))
    assert of_two.sum(axis=1).tolist() == pytest.approx((2 * figures["wall_ns"]).tolist())
