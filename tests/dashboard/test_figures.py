"""Figures are pure functions of frames: what is drawn, how many marks, and how many bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pandas as pd
import plotly.graph_objects as go
import pytest

from dashboard.figures.memory import held_figure, parts_figure, slots_figure
from dashboard.figures.selective import bytes_figure, distinct_figure, heat_figure, overlap_figure
from dashboard.figures.style import arm_style
from dashboard.figures.sweep import change_figure, sweep_figure
from dashboard.figures.time import busy_figure, layer_figure, margin_figure, spent_figure
from profiler.metrics.experts import spread_by_size
from profiler.metrics.memory import all_held
from profiler.metrics.timeline import load_timeline
from profiler.report.build import build_report
from profiler.report.sweep import Crossover, improvement_grid, sweep_figures
from tests.profiler import makers


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
    assert set(drawn) == {"compute", "hidden copy", "exposed copy", "idle"}
    assert drawn["exposed copy"]["marker"]["pattern"]["shape"] == "/"  # type: ignore[index]
    assert list(figure.data[0].x) == [5.0, 3.0]
    assert "B  &lt;on&gt;" in figure.data[0].y


def test_arms_differ_in_more_than_colour() -> None:
    arms = [f"arm{i}" for i in range(8)]
    styles = [arm_style(arm, arms) for arm in arms]
    assert len({style["marker"] for style in styles}) == 8
    assert len({style["colour"] for style in styles}) == 8


def test_sweep_has_a_line_an_arm_and_the_limit(tmp_path: Path) -> None:
    report = build_report(makers.dense_off_on(tmp_path / "c"))
    rows = sweep_figures(report.cells, "ttft_ns")
    near, wide = Crossover(3.0, 6.0, 4.0, 3.0, 5.0), Crossover(3.0, 9.0, None, None, None)
    figure = sweep_figure(rows, "ttft_ns", "n_ubatch", ["off", "on"], ["on"], {"on": near})
    assert set(traces(figure)) == {"off", "on", "limit of on: max(C, T)"}
    assert figure.layout.annotations[0].text == "crossover of on: 4"
    spanned = sweep_figure(rows, "ttft_ns", "n_ubatch", ["off", "on"], (), {"on": wide}).layout
    assert spanned.annotations[0].text == "crossover of on: between 3 and 9"
    assert [(shape.type, shape.x0, shape.x1) for shape in spanned.shapes] == [("rect", 3.0, 9.0)], "and no line"
    assert figure.data[0].y[0] == pytest.approx(report.cells[0].arms["off"].figures["pass"]["ttft_ns"].median / 1e6)  # type: ignore[union-attr]
    grid, verdicts = improvement_grid(rows[rows["arm"] == "on"], lower_is_better=True)
    assert "faster" in change_figure(grid, verdicts).data[0].text[0][0]


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
    rows = pd.DataFrame({"n_tokens": [1, 64, 64], "distinct_share": [0.1, 0.5, 0.7]})
    curve = pd.DataFrame({"n_tokens": [1, 64], "share": [0.1, 0.9]})
    figure = distinct_figure(spread_by_size(rows), curve)
    assert list(figure.data[0].y) == pytest.approx([10.0, 60.0])
    assert heat_figure(np.array([0, 3]), np.array([[0, 1], [0.5, 0]])).data[0].z.tolist() == [[0, 100], [50, 0]]
    jaccard = pd.DataFrame({"layer": [1, 1, 2], "n_tokens": [64, 64, 1], "jaccard": [0.2, 0.4, 0.1]})
    assert set(traces(overlap_figure(jaccard))) == {"in prefill", "in decode"}


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
    grid = pd.DataFrame([[1e6, -2e6]], index=pd.Index([0], name="ubatch"), columns=pd.Index([0, 1], name="layer"))
    assert margin_figure(grid).data[0].z.tolist() == [[1.0, -2.0]]


def test_memory_parts_slots_and_peak() -> None:
    parts = pd.DataFrame({"resident": [5e6], "slots": [2e6], "bank": [np.nan], "other": [1e6], "peak": [8e6]})
    assert set(traces(parts_figure(parts, ["A  off"]))) == {
        "weights that stay",
        "slots for streamed weights",
        "activations, KV cache, the rest",
    }
    held = pd.DataFrame({"slot": [0, 1], "layer": [0, 1], "bytes": [1e6, 1e6], "start_ns": [0, 10], "end_ns": [50, 50]})
    assert sum(len(trace.x) for trace in slots_figure(held).data) == 2
    steps = pd.DataFrame({"t_ns": [0, 10, 50], "bytes": [1e6, 2e6, 0]})
    nan = float("nan")
    no_bank = held_figure(all_held(steps, {"resident": 5e6, "bank": nan, "peak": nan}))
    assert no_bank.layout.annotations[0].text == "at most 7 MB"
    assert set(traces(no_bank)) == {"weights that stay", "with what the slots hold"}
    assert set(traces(held_figure(all_held(steps, {"resident": nan, "bank": 3e6, "peak": 9e6})))) == {
        "what the slots hold"
    }


def test_memory_over_time_counts_the_bank_and_shows_the_peak() -> None:
    steps = pd.DataFrame({"t_ns": [0, 10, 50], "bytes": [1e6, 2e6, 0]})
    figure = held_figure(all_held(steps, {"resident": 5e6, "bank": 3e6, "peak": 12e6}))
    assert figure.layout.annotations[0].text == "at most 10 MB"
    drawn = {trace.name: list(trace.y) for trace in figure.data}
    assert drawn["expert cache's bank"] == [3, 3], "stacked on the weights"
    assert drawn["with what the slots hold"] == [9, 10, 8]
    assert drawn["the device's peak, with all that it reserves"] == [12, 12]


def test_many_slot_fillings_stay_under_the_payload_limit() -> None:
    n = 50_000
    held = pd.DataFrame(
        {
            "slot": np.arange(n) % 2,
            "layer": np.arange(n) % 48,
            "bytes": 1e6,
            "start_ns": np.arange(n),
            "end_ns": np.arange(n) + 1,
        }
    )
    assert payload_bytes(slots_figure(held)) < 2_000_000
