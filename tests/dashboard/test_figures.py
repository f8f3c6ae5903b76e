"""Figures are pure functions of frames: what is drawn, how many marks, and how many bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pandas as pd
import plotly.graph_objects as go
import pytest

from dashboard.figures.advice import DECODE, MEMORY, TTFT, pareto_figure
from dashboard.figures.memory import held_figure, over_time_figure, parts_figure, slots_figure
from dashboard.figures.selective import bytes_figure, coverage_figure, distinct_figure, idle_tokens, overlap_figure
from dashboard.figures.size_axes import SweepArms
from dashboard.figures.style import arm_style
from dashboard.figures.sweep import grid_figure, ratio_figure, sweep_figure
from dashboard.figures.time import busy_figure, layer_figure, margin_figure, spent_figure
from profiler.metrics.experts import hottest_coverage, spread_by_layer, typical_use
from profiler.metrics.layers import margin_by_layer
from profiler.metrics.memory import all_held
from profiler.metrics.timeline import load_timeline
from profiler.report.build import build_report
from profiler.report.sweep import Crossover, factor_grid, factors_as_fast, sweep_figures
from tests.profiler import makers

MIB = 2**20


def traces(figure: go.Figure) -> dict[str, dict[str, object]]:
    spec = orjson.loads(figure.to_json())
    return {trace["name"]: trace for trace in spec["data"] if "name" in trace}


def payload_bytes(figure: go.Figure) -> int:
    return len(figure.to_json())


def test_time_spent_is_stacked_and_exposed_copy_is_hatched() -> None:
    spent = pd.DataFrame(
        {
            "compute_ns": [5e6, 3e6],
            "hidden_ns": [0, 2e6],
            "exposed_ns": [2e6, 0],
            "other_ns": [0.0, 0],
            "idle_ns": [1e6, 1e6],
        }
    )
    figure = spent_figure(spent, ["A  off", "B  <on>"])
    drawn = traces(figure)
    assert set(drawn) == {"compute", "hidden copy", "exposed copy", "end"}
    by_name = {trace.name: trace for trace in figure.data}
    assert list(by_name["compute"].x) == [5, 5], "alone and beside copies"
    assert list(by_name["end"].x) == [8, 6]
    assert [list(names) for names in by_name["compute"].y] == [["A  off", "B  &lt;on&gt;"], ["compute"] * 2]
    assert drawn["exposed copy"]["marker"]["pattern"]["shape"] == "/"  # type: ignore[index]
    hosted = spent_figure(spent.assign(host_compute_ns=[4e6, 0.0]), ["A  off", "B  <on>"])
    on_host = next(trace for trace in hosted.data if trace.name == "CPU compute")
    assert list(on_host.x) == [4, 0]
    assert list(next(trace for trace in hosted.data if trace.name == "end").x) == [8, 6], "the host's lies beside it"
    assert hosted.layout.height > figure.layout.height, "a bar more an arm"


def test_arms_differ_in_more_than_colour() -> None:
    arms = [f"arm{i}" for i in range(8)]
    styles = [arm_style(arm, arms) for arm in arms]
    assert len({style["marker"] for style in styles}) == 8
    assert len({style["colour"] for style in styles}) == 8


def test_sweep_has_a_line_an_arm_and_the_limit(tmp_path: Path) -> None:
    report = build_report(makers.dense_off_on(tmp_path / "c"))
    rows = sweep_figures(report.cells, "ttft_ns")
    figure = sweep_figure(rows, "ttft_ns", "n_ubatch", SweepArms(["off", "on"], "off", "on"))
    limits = ["limit of off: max(C, T)", "limit of on: max(C, T)"]
    assert list(traces(figure)) == ["off", "on", *limits], "limits over the lines"
    assert figure.data[0].y[0] == pytest.approx(report.cells[0].arms["off"].figures["pass"]["ttft_ns"].median / 1e6)  # type: ignore[union-attr]
    assert figure.layout.yaxis.type == "log"
    ends = {note.text for note in figure.layout.annotations if note.name == "end"}
    assert {text.rpartition("</span> ")[2] for text in ends} == {"<b>off</b>", "<b>on</b>"}
    assert all(text.startswith('<span style="color:#') for text in ends), "the colour beside the name"


def swept() -> pd.DataFrame:
    """Rows of `sweep_figures` of `on` and `hot` at two sizes."""
    sizes = {"n_prompt": 512.0, "n_gen": 1.0, "n_ubatch": [64.0, 128.0] * 2, "n_depth": 0.0}
    ratios = {"ratio": [1.25, 0.8, 0.99, 0.98], "ratio_low": [1.2, 0.7, 0.9, 0.9], "ratio_high": [1.3, 0.9, 1.1, 1.1]}
    verdicts = {"verdict": ["slower", "faster", "inconclusive", "inconclusive"]}
    verdicts["word"] = ["slower", "faster", "same work", "3 of 6 pairs"]
    return pd.DataFrame({**sizes, "arm": ["on", "on", "hot", "hot"], "median": 1e6, **ratios, **verdicts})


def test_ratios_over_sizes_have_a_line_at_one_a_band_of_b_and_the_crossover() -> None:
    near, wide = Crossover(64.0, 128.0, 91.0, 80.0, 100.0), Crossover(64.0, 256.0, None, None, None)
    rows, arms = factors_as_fast(swept(), "ttft_ns"), SweepArms(["off", "on", "hot"], "off", "on")
    figure = ratio_figure(rows, "n_ubatch", arms, {"on": near})
    assert list(traces(figure)) == ["hot", "interval of on", "on"], "B over the others, and its band alone"
    assert list(figure.data[-1].y) == pytest.approx([0.8, 1.25])
    assert figure.data[0].opacity < figure.data[-1].opacity
    assert (figure.layout.shapes[0].y0, figure.layout.shapes[0].y1) == (1, 1)
    assert "crossover of on: 91" in [note.text for note in figure.layout.annotations]
    spanned = ratio_figure(rows, "n_ubatch", arms, {"on": wide}).layout
    assert "crossover of on: between 64 and 256" in [note.text for note in spanned.annotations]
    assert [(shape.x0, shape.x1) for shape in spanned.shapes if shape.type == "rect"] == [(64.0, 256.0)], "and no line"


def test_labels_at_the_lines_ends_do_not_overlap() -> None:
    rows = pd.concat([swept().assign(arm=f"arm {n}") for n in range(6)])
    layout = ratio_figure(
        factors_as_fast(rows, "ttft_ns"), "n_ubatch", SweepArms([f"arm {n}" for n in range(6)], "a", None), {}
    ).layout
    places = sorted(note.y for note in layout.annotations if note.name == "end")
    least = 0.05 * (layout.yaxis.range[1] - layout.yaxis.range[0])
    assert np.diff(places).min() > least


def test_the_grid_tells_factors_and_is_pale_without_a_verdict() -> None:
    rows = swept()
    grid, words = factor_grid(rows[rows["arm"] == "on"], "ttft_ns")
    figure = grid_figure(grid, words, "n_ubatch", (0.0, 128.0))
    heat, points = figure.data
    assert list(points.text) == ["0.80 ▼", "1.25 ▲"]
    assert list(points.customdata) == [[0, 64], [0, 128]]
    assert heat.z[0][0] < 0 < heat.z[0][1]
    assert [(shape.x0, shape.x1) for shape in figure.layout.shapes] == [(0.5, 1.5)]
    grid, words = factor_grid(rows[rows["arm"] == "hot"], "ttft_ns")
    pale = grid_figure(grid, words, "n_ubatch", (0.0, 1.0))
    assert list(pale.data[1].text) == ["1.010", "1.020"], "no sign without a verdict"
    assert [text.rpartition(", ")[2] for text in pale.data[1].hovertext] == ["same work", "3 of 6 pairs"], "but why"
    assert list(pale.data[0].z[0]) == pytest.approx([-0.5 * np.log(0.99), -0.5 * np.log(0.98)])
    assert [list(axis.range) for axis in (pale.layout.xaxis, pale.layout.yaxis)] == [[-0.5, 1.5], [-0.5, 0.5]]


def test_heatmap_of_busy_shares_stays_small(tmp_path: Path) -> None:
    capture = makers.dense_off_on(tmp_path / "c", n_pairs=1)
    lines = [load_timeline(capture, [pass_id]) for pass_id in (2, 3)]
    figure = busy_figure(lines, ["off", "on"])
    assert len(figure.data[0].y) == 4
    assert figure.data[0].z.shape == (4, 1500)
    assert payload_bytes(figure) < 100_000


def test_bytes_of_each_ubatch_against_whole_copies() -> None:
    rows = pd.DataFrame({"ubatch": [0, 1], "bytes_h2d": [1e6, 2e6], "whole_bytes": [4e6, 4e6]})
    drawn = traces(bytes_figure({"off": rows, "on": rows}, ["off", "on"]))
    assert set(drawn) == {"whole copies would move", "off moved", "on moved"}


def test_experts_touched_heat_and_overlap() -> None:
    n_tokens, phases, shares = [1, 1, 64, 64], ["prefill", "decode", "prefill", "prefill"], [0.2, 0.1, 0.5, 0.7]
    rows = pd.DataFrame({"n_tokens": n_tokens, "phase": phases, "distinct_share": shares, "copied_share": shares})
    curve = pd.DataFrame({"n_tokens": [1, 64], "share": [0.1, 0.9]})
    drawn = traces(distinct_figure(typical_use(rows.assign(hits=np.nan, misses=np.nan)), curve))
    assert list(drawn) == ["measured in prefill", "measured in decode", "modelled: every expert equally likely"]
    covered = hottest_coverage(np.array([[0, 1, 1, 0], [0.5, 0, 0.25, 0.25], [0, 0, 0, 0]]))
    assert covered["median"].tolist() == pytest.approx([0.5, 0.875, 1, 1]), "what is never used serves nothing"
    assert list(coverage_figure(covered).data[1].y) == pytest.approx([50, 87.5, 100, 100])
    jaccard = pd.DataFrame({"layer": [1, 1, 1], "jaccard": [0.2, 0.4, 0.1]})
    jaccard["phase"] = ["prefill", "prefill", "decode"]
    assert list(traces(overlap_figure(spread_by_layer(jaccard)))) == ["in prefill", "in decode"]
    assert spread_by_layer(jaccard)["median"].tolist() == pytest.approx([0.3, 0.1]), "each phase for itself"


def test_layers_and_their_margin() -> None:
    layers = pd.DataFrame(
        {
            "layer": [0, 1],
            "compute_ns": [5e6, 1e6],
            "copy_ns": [2e6, 4e6],
            "hidden_ns": [1e6, 0],
            "exposed_ns": [1e6, 4e6],
        }
    ).assign(copy_bound=[False, True])
    figure = layer_figure(layers)
    assert list(traces(figure)) == ["C: compute", "T: hidden copy", "T: exposed copy", "copy-bound: T > C"]
    assert list(figure.data[-1].x) == [pytest.approx(1, abs=0.5)]
    grid = pd.DataFrame([[1e6, -2e6], [3e6, -4e6]], columns=pd.Index([0, 1], name="layer"))
    drawn = {trace.name: list(trace.y) for trace in margin_figure(margin_by_layer(grid)).data}
    assert drawn["prefetch pays"] == [2.0]
    assert drawn["prefetch loses"] == [-3.0]
    assert drawn["the middle half of the ubatches"] == [2.5, -2.5, -3.5, 1.5]


def test_memory_parts_slots_and_peak() -> None:
    parts = pd.DataFrame({"resident": [5e6], "slots": [2e6], "bank": [np.nan], "other": [1e6], "peak": [8e6]})
    assert set(traces(parts_figure(parts, ["A  off"]))) == {
        "weights that stay",
        "slots for streamed weights",
        "activations, KV cache, the rest",
    }
    held = pd.DataFrame({"slot": [0, 1], "layer": [0, 1], "bytes": [1e6, 1e6], "start_ns": [0, 10], "end_ns": [50, 50]})
    nan = float("nan")
    held = held.assign(filled_ns=[5, 20], read_ns=[10, nan], done_ns=[30, nan])
    states = {trace.name: (trace.x * 1e6).round().tolist() for trace in slots_figure(held).data}
    assert states == {"filling": [5, 10], "full, waiting": [5, 0], "read": [20, 0], "kept": [20, 30]}
    steps = pd.DataFrame({"t_ns": [0, 10, 50], "bytes": [MIB, 2 * MIB, 0]})
    nan = float("nan")
    no_bank = held_figure(all_held(steps, {"resident": 5 * MIB, "bank": nan, "peak": nan}))
    assert no_bank.layout.annotations[0].text == "at most 7 MiB"
    assert set(traces(no_bank)) == {"weights that stay", "with what the slots hold"}
    assert set(traces(held_figure(all_held(steps, {"resident": nan, "bank": 3 * MIB, "peak": 9 * MIB})))) == {
        "what the slots hold"
    }


def test_memory_over_time_counts_the_bank_and_shows_the_peak() -> None:
    steps = pd.DataFrame({"t_ns": [0, 10, 50], "bytes": [MIB, 2 * MIB, 0]})
    figure = held_figure(all_held(steps, {"resident": 5 * MIB, "bank": 3 * MIB, "peak": 12 * MIB}))
    assert figure.layout.annotations[0].text == "at most 10 MiB"
    drawn = {trace.name: list(trace.y) for trace in figure.data}
    assert drawn["expert cache's bank"] == [3, 3], "stacked on the weights"
    assert drawn["with what the slots hold"] == [9, 10, 8]
    assert drawn["the device's peak, with all that it reserves"] == [12, 12]


def test_memory_and_slots_share_one_axis_of_time() -> None:
    steps = pd.DataFrame({"t_ns": [0, 10, 50], "bytes": [MIB, 2 * MIB, 0]})
    held = pd.DataFrame({"slot": [0, 1], "layer": [0, 1], "start_ns": [0, 10], "end_ns": [50, 60]})
    held = held.assign(filled_ns=[5, 20], read_ns=[10, 30], done_ns=[30, 40])
    figure = over_time_figure(all_held(steps, {"resident": 5 * MIB, "bank": np.nan, "peak": 12 * MIB}), held)
    assert figure.layout.xaxis.matches == "x2"
    assert list(figure.layout.xaxis2.range) == [0, 60 / 1e6]
    assert {trace.yaxis for trace in figure.data} == {"y", "y2"}
    assert figure.layout.yaxis.title.text == "MiB"


def test_many_slot_fillings_stay_under_the_payload_limit() -> None:
    n = 50_000
    held = pd.DataFrame(
        {
            "slot": np.arange(n) % 2,
            "layer": np.arange(n) % 48,
            "bytes": 1e6,
            "start_ns": np.arange(n),
            "end_ns": np.arange(n) + 4,
            "filled_ns": np.arange(n) + 1,
            "read_ns": np.arange(n) + 2,
            "done_ns": np.arange(n) + 3,
        }
    )
    assert payload_bytes(slots_figure(held)) < 2_000_000


def test_the_front_stands_out_of_what_was_looked_at() -> None:
    rows = {"arm": ["off", "on", "on"], "-ub": [64, 128, 128], TTFT: [900.0, 90.0, 110.0], MEMORY: [1.0, 2.0, 2.0]}
    all_of_it = pd.DataFrame({**rows, DECODE: [10.0, 20.0, 30.0]})
    figure = pareto_figure(all_of_it.iloc[1:], all_of_it)
    drawn = {trace.name: trace for trace in figure.data}
    assert set(drawn) == {"looked at (1 slower beyond the right edge)", "on"}
    assert list(drawn["on"].text) == ["2 GiB", "2 GiB"]
    assert 10 ** figure.layout.xaxis.range[1] < 900, "what nobody would set is no reason to crowd the rest"
    near = pd.concat([all_of_it.iloc[1:], all_of_it.iloc[1:2].assign(**{TTFT: 91.0, MEMORY: 2.1})])
    texts = next(trace.text for trace in pareto_figure(near, near).data if trace.name == "on")
    assert list(texts) == ["2 GiB", "2 GiB", ""], "texts do not lie on each other"
    assert figure.layout.yaxis.title.text == "decode, t/s: more is better"
    without = all_of_it.assign(**{DECODE: np.nan})
    assert pareto_figure(without.iloc[1:], without).layout.yaxis.title.text == "memory, GiB: less is better"


def test_tokens_that_copy_no_weights_are_not_drawn() -> None:
    rows = {"ubatch": [0, 1, 2], "phase": ["prefill", "decode", "decode"], "bytes_h2d": [9e6, 4e3, 0]}
    off = pd.DataFrame(rows | {"whole_bytes": [9e6, 4e3, None]})
    assert idle_tokens({"off": off}) == [1, 2]
    cache = off.assign(bytes_h2d=[9e6, 0, 3e6])
    assert idle_tokens({"off": off, "cache": cache}) == [1]
    assert idle_tokens({"off": off[2:].assign(bytes_h2d=5)}) == []
