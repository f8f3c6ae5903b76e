"""Passes, ubatches, layers and devices of the hand-made captures, whose figures are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hprof
from profiler.arithmetic.groups import sum_by
from profiler.capture import Capture
from profiler.metrics import (
    FIGURES,
    OverlapByPass,
    device_figures,
    layer_figures,
    load_tables,
    pass_figures,
    ubatch_figures,
)
from profiler.storage.writer import PassKey, conform, new_capture
from tests.profiler import makers
from tests.support import ROOT

US = makers.US


def by_arm(capture: Capture, scope: Any = "pass") -> dict[str, pd.Series]:
    """The first measured pass of each arm."""
    frame = pass_figures(*load_tables(capture))[scope]
    measured = capture.passes[~capture.passes["warmup"]]
    return {str(arm): frame.loc[rows["pass_id"].iloc[0]] for arm, rows in measured.groupby("arm")}


def test_a_dense_pass_in_line_and_ahead(tmp_path: Path) -> None:
    found = by_arm(makers.dense_off_on(tmp_path / "c", n_pairs=1))
    for arm, hidden_us, wall_us in (
        ("off", makers.OFF_HIDDEN_US, makers.OFF_WALL_US),
        ("on", makers.ON_HIDDEN_US, makers.ON_WALL_US),
    ):
        figures = found[arm]
        assert figures["busy_copy_ns"] == 600 * US
        assert figures["busy_compute_ns"] == 360 * US
        assert figures["hidden_copy_ns"] == hidden_us * US
        assert figures["exposed_copy_ns"] == (600 - hidden_us) * US
        assert figures["overlap_efficiency"] == pytest.approx(hidden_us / 360)
        assert figures["hidden_ratio"] == pytest.approx(hidden_us / 600)
        assert figures["wall_ns"] == wall_us * US
        assert figures["idle_ns"] == 0
        assert figures["bytes_h2d"] == 48_000
        assert figures["selective_saving_bytes"] == 0
        assert figures["vram_peak_bytes"] == 50_000
        assert np.isnan(figures["distinct_share"])
        assert np.isnan(figures["wait_ns"]), "no wait was recorded: whether it waited is not known"


def test_phases_add_up_to_the_pass(tmp_path: Path) -> None:
    capture = makers.dense_off_on(tmp_path / "c", n_pairs=1)
    whole, prefill, decode = (by_arm(capture, scope)["on"] for scope in ("pass", "prefill", "decode"))
    for name in ("busy_copy_ns", "busy_compute_ns", "hidden_copy_ns", "exposed_copy_ns", "bytes_h2d"):
        assert prefill[name] + decode[name] == whole[name]
    assert prefill["wall_ns"] == 460 * US
    assert decode["wall_ns"] == 200 * US
    assert prefill["hidden_copy_ns"] == 180 * US, "the first copy has nothing to hide behind"
    assert decode["overlap_efficiency"] == 1.0
    assert np.isnan(decode["ttft_ns"])
    assert decode["decode_tokens_per_s"] == pytest.approx(1 / 200e-6)
    assert prefill["prefill_tokens_per_s"] == pytest.approx(8 / 460e-6)


def test_selective_copy_and_experts(tmp_path: Path) -> None:
    found = by_arm(makers.moe_off_on(tmp_path / "c", n_pairs=1))
    assert (found["off"]["bytes_h2d"], found["on"]["bytes_h2d"]) == (2000, 8000)
    assert (found["off"]["selective_saving_bytes"], found["on"]["selective_saving_bytes"]) == (6000, 0)
    assert found["off"]["distinct_share"] == 0.25
    assert np.isnan(found["off"]["cache_hit_rate"])
    decode = by_arm(Capture.open(tmp_path / "c"), "decode")["off"]
    assert decode.isna().all(), "nothing was decoded, which is not the same as 0 bytes"


def test_pieces_of_one_tensor_name_its_whole_size_once() -> None:
    rows = {"kind": ["h2d"] * 3, "pass_id": [0] * 3, "ubatch": [0] * 3, "layer": [0] * 3, "t_start": [0, 1, 2]}
    rows |= {"t_end": [1, 2, 3], "tensor": ["up", "up", None], "bytes": [10, 20, 5], "whole_bytes": [100, 100, None]}
    moved = OverlapByPass([conform("events", rows)]).transfers(("pass_id",))
    assert moved.bytes_h2d.tolist() == [35]
    assert moved.whole_bytes.tolist() == [105], "a copy that names no whole size is whole"
    assert moved.selective_saving_bytes.tolist() == [70]


def test_bytes_are_null_where_one_copy_does_not_say() -> None:
    rows = {"kind": ["h2d"] * 2, "pass_id": [0, 0], "t_start": [0, 1], "t_end": [1, 2], "bytes": [10, None]}
    moved = OverlapByPass([conform("events", rows)]).transfers(("pass_id",))
    assert np.isnan(moved.bytes_h2d[0])
    assert np.isnan(moved.selective_saving_bytes[0])


def test_cache_hits_and_shares_of_experts_over_layers(tmp_path: Path) -> None:
    writer = new_capture(tmp_path / "c", source="kineto")
    writer.write_part("passes", {"pass_id": [0]}, "p")
    experts = {"pass_id": [0, 0], "phase": ["decode", "decode"], "n_experts": [8, 8], "distinct": [2, 4]}
    writer.write_part("experts", experts | {"copied": [1, 2], "hits": [3, None], "misses": [1, None]}, "p")
    frames = pass_figures(*load_tables(Capture.open(tmp_path / "c")))
    for scope in ("pass", "decode"):
        assert frames[scope].loc[0, "cache_hit_rate"] == 0.75
        assert frames[scope].loc[0, "distinct_share"] == 6 / 16
        assert frames[scope].loc[0, "copied_share"] == 3 / 16
    assert frames["prefill"].loc[0].isna().all()


def test_passes_without_events_have_rates_and_nulls(tmp_path: Path) -> None:
    found = by_arm(makers.passes_without_events(tmp_path / "c"))["-pw 0"]
    assert found["prefill_tokens_per_s"] == pytest.approx(512 / 512_000e-9)
    assert found["decode_tokens_per_s"] == pytest.approx(16 / 16_000e-9), "n_decoded says what decode_ns covers"
    assert found["decode_token_ns"] == pytest.approx(1000)
    assert found.drop(["prefill_tokens_per_s", "decode_tokens_per_s", "decode_token_ns"]).isna().all()


def test_prefill_time_is_ttft_without_sampling_where_it_is_not_told(tmp_path: Path) -> None:
    writer = new_capture(tmp_path / "c", source="kineto")
    writer.write_part("passes", {"pass_id": [0], "n_prompt": [100], "ttft_ns": [1100], "sampling_ns": [100]}, "p")
    frame = pass_figures(*load_tables(Capture.open(tmp_path / "c")))["pass"]
    assert frame.loc[0, "prefill_tokens_per_s"] == pytest.approx(1e8)


@pytest.mark.parametrize(("n_prompt", "n_gen", "n_tokens"), [(8, 5, 4), (0, 5, 5), (None, 5, 4), (0, 1, 1), (8, 1, 0)])
def test_without_a_prompt_the_first_token_is_decoded_too(
    tmp_path: Path, n_prompt: int | None, n_gen: int, n_tokens: int
) -> None:
    writer = new_capture(tmp_path / "c")
    writer.add_pass_row(0, PassKey("off", 4, 0, n_prompt, n_gen, 0, 0, 0), decode_ns=10_000)
    writer.finish()
    (rate,) = pass_figures(*load_tables(Capture.open(tmp_path / "c")))["decode"]["decode_tokens_per_s"]
    assert rate == pytest.approx(n_tokens * 1e5) if n_tokens else np.isnan(rate)


def test_ubatches(tmp_path: Path) -> None:
    capture = makers.dense_off_on(tmp_path / "c", n_pairs=1)
    tables = load_tables(capture, pass_ids=[3])
    frame = ubatch_figures(tables.ubatches, tables.recording)
    assert frame["phase"].tolist() == ["prefill", "prefill", "decode"]
    assert frame["policy"].tolist() == ["on"] * 3
    assert frame["wall_ns"].tolist() == [260 * US, 200 * US, 200 * US]
    assert frame["bytes_h2d"].tolist() == [16_000] * 3
    assert frame["hidden_copy_ns"].tolist() == [60 * US, 120 * US, 120 * US]
    assert frame["idle_ns"].tolist() == [0, 0, 0]


def test_layers_and_the_two_conditions(tmp_path: Path) -> None:
    capture = makers.moe_off_on(tmp_path / "c", n_pairs=1)
    rows = {
        "pass_id": [0] * 5,
        "phase": ["prefill"] * 5,
        "ubatch": [0] * 5,
        "layer": [0, 0, 0, 1, 1],
        "device": [0] * 5,
        "kind": ["h2d", "wait", "compute", "h2d", "compute"],
        "t_start": [0, 0, 25, 85, 110],
        "t_end": [25, 25, 85, 110, 170],
        "bytes": [2000, None, None, 2000, None],
        "whole_bytes": [8000, None, None, 8000, None],
        "tensor": ["up", None, None, "up", None],
    }
    writer = new_capture(tmp_path / "d")
    writer.write_part("events", rows, "pass-000000")
    writer.write_part("passes", {"pass_id": [0]}, "pass-000000")
    frame = layer_figures(load_tables(Capture.open(tmp_path / "d")).recording)
    first, second = (frame.iloc[row] for row in (0, 1))
    assert (first["compute_ns"], first["copy_ns"], first["wait_ns"], second["wait_ns"]) == (60, 25, 25, 0)
    assert first["whole_copy_ns"] == 100, "a quarter was copied in 25 ns"
    assert first["next_whole_copy_ns"] == 100
    assert not first["hides"], "C = 60 cannot hide T' = 100"
    assert not first["pays"], "C + T = 85 is less than T' = 100: the selective copy in line is faster"
    assert pd.isna(second["hides"])
    assert layer_figures(load_tables(capture).recording)["copy_ns"].tolist() == [25 * US, 100 * US]


def test_devices_of_an_import(tmp_path: Path) -> None:
    capture = makers.imported_without_passes(tmp_path / "c")
    first, second = device_figures(load_tables(capture).recording)
    assert (first.process, first.device, first.kernels, first.compute_busy_ns) == (4711, 0, 1, 150 * US)
    h2d, d2h = first.copies["h2d"], first.copies["d2h"]
    assert (h2d.count, h2d.bytes, h2d.busy_ns, h2d.hidden_ns, h2d.exposed_ns) == (2, 8000, 200 * US, 100 * US, 100 * US)
    assert h2d.gb_s == pytest.approx(0.04)
    assert (h2d.pinned_bytes, h2d.pageable_bytes, h2d.streams) == (8000, 0, [7])
    assert d2h.streams == [20]
    unknown = second.copies["h2d"]
    assert (unknown.bytes, unknown.gb_s, unknown.pinned_bytes) == (None, None, None)
    assert (second.kernels, second.compute_streams) == (0, [])


def test_rows_with_impossible_times_count_nowhere_and_are_counted() -> None:
    rows = {
        "kind": ["h2d"] * 6,
        "t_start": [0, 5, None, 0, -(2**62), 2**62],
        "t_end": [10, 4, 7, None, 0, 2**62 + 5],
        "bytes": [1] * 6,
    }
    recording = OverlapByPass([conform("events", rows)])
    assert (recording.n_rows, recording.n_impossible) == (1, 5)
    assert recording.transfers(("pass_id",)).bytes_h2d.tolist() == [1]


def test_impossible_windows_and_sizes_are_nulls(tmp_path: Path) -> None:
    passes = {"pass_id": [0, 1, 2], "t_start": [-(2**63), 9, 0], "t_end": [2**63 - 1, 3, 5], "ttft_ns": [-5, 7, None]}
    writer = new_capture(tmp_path / "c", source="kineto")
    writer.write_part("passes", passes, "p")
    sizes = {"kind": ["h2d"] * 3, "pass_id": [0, 1, 1], "t_start": [0] * 3, "t_end": [1] * 3}
    writer.write_part("events", sizes | {"bytes": [2**62, 7, 8]}, "p")
    ubatch = {"phase": ["prefill"] * 3, "t_start": [0, 5, -(2**63)], "t_end": [3, 4, 2**63 - 1]}
    writer.write_part("ubatches", {"pass_id": [2, 2, 2]} | ubatch, "p")
    capture = hprof.open(tmp_path / "c")
    frame = capture.figures()
    assert frame["wall_ns"].isna().tolist() == [True, True, False]
    assert frame["ttft_ns"].isna().tolist() == [True, False, True]
    assert frame["bytes_h2d"].tolist()[1] == 15
    assert np.isnan(frame["bytes_h2d"].tolist()[0])
    assert capture.figures("prefill")["wall_ns"].tolist()[2] == 3
    assert capture.figures("ubatch")["wall_ns"].isna().tolist() == [False, True, True]


@pytest.mark.filterwarnings("error")
def test_possible_sizes_of_very_many_rows_add_up_to_a_number() -> None:
    assert sum_by(np.zeros(3, np.int64), np.full(3, 1e19), 1).tolist() == [1 << 62]


def test_overlapping_copies_and_kernels_are_united_not_added() -> None:
    rows = {
        "pass_id": [0] * 4,
        "device": [0] * 4,
        "kind": ["h2d", "h2d", "compute", "compute"],
        "stream": ["1", "2", "3", "4"],
        "t_start": [0, 5, 8, 9],
        "t_end": [10, 15, 12, 20],
    }
    found = OverlapByPass([conform("events", rows)]).overlap(("pass_id",))
    assert found.busy_copy_ns.tolist() == [15]
    assert found.busy_compute_ns.tolist() == [12]
    assert found.hidden_copy_ns.tolist() == [7]


def test_every_figure_is_documented() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert [name for name in FIGURES if f"`{name}`" not in text] == []
