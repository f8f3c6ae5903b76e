"""The thread's measurement on Laguna-S-2.1 with 28 layers' experts in host memory, where no GPU is needed.

The thread copied 13,668 MiB (off), 30,774 MiB (off-whole) and 28,128 MiB (on) for a prompt of 34 tokens.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from executor.devices.factory import DeviceOptions
from profiler.capture import Capture
from profiler.planning.request import GridPoint, PlacementOptions, RunRequest
from profiler.report.build import build_report
from profiler.report.cells import Cell as Judged
from tests.profiler.runs import make_capture

ARMS = ("off", "off-whole", "on", "gated")
EXPERTS_OF_ONE_LAYER = 3 * 256 * 1024 * 3072 * 18 // 32  # IQ4_NL: 18 bytes hold 32 weights


def _laguna(path: Path, n_prompt: int, arms: tuple[str, ...]) -> Capture:
    return make_capture(
        path,
        RunRequest(
            cells=(GridPoint(n_prompt, n_gen=1, n_ubatch=2048, n_depth=0),),
            device=DeviceOptions("sim"),
            model="laguna-s-2.1",
            arms=arms,
            placements=(PlacementOptions(n_cpu_moe=29),),  # layer 0 has no experts
            repetitions=1,
        ),
    )


def _figure(cell: Judged, arm: str, name: str) -> float:
    figure = cell.arms[arm].figures["prefill"][name]
    assert figure is not None
    return figure.median


@pytest.fixture(scope="module")
def short_prompt(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return _laguna(tmp_path_factory.mktemp("laguna") / "capture", 34, ARMS)


def test_28_layers_stream(short_prompt: Capture) -> None:
    for arm in short_prompt.manifest.arms:
        effective = arm.options["effective"]
        assert effective["host_layers"] == list(range(1, 29))
        assert effective["host_bytes"] == 28 * EXPERTS_OF_ONE_LAYER


def test_bytes_of_a_short_prompt(short_prompt: Capture) -> None:
    (cell,) = build_report(short_prompt).cells
    copied = {arm: _figure(cell, arm, "bytes_h2d") for arm in ARMS}
    # `on` copies all that `off-whole` does, its first splits too. llama.cpp's copied 2,646 MiB less than its control,
    # the whole of some two layers: what has no split to be copied behind stays selective there.
    assert copied["on"] == copied["off-whole"] == 28 * EXPERTS_OF_ONE_LAYER
    assert copied["off-whole"] / copied["off"] == pytest.approx(30_774 / 13_668, abs=0.15)
    assert 2.0 <= copied["on"] / copied["off"] <= 2.3
    assert copied["gated"] == copied["off"]


def test_selected_bytes_follow_from_the_distinct_share(short_prompt: Capture) -> None:
    (cell,) = build_report(short_prompt).cells
    share = _figure(cell, "off", "distinct_share")
    assert share == pytest.approx(0.44, abs=0.01)
    whole = 28 * EXPERTS_OF_ONE_LAYER
    # The share is of all 47 layers with experts, the bytes are of 28.
    assert _figure(cell, "off", "bytes_h2d") == pytest.approx(share * whole, rel=0.03)
    assert _figure(cell, "off", "selective_saving_bytes") == whole - _figure(cell, "off", "bytes_h2d")


def test_prefetch_delays_the_first_token_of_a_short_prompt_and_the_gate_recovers_it(short_prompt: Capture) -> None:
    (cell,) = build_report(short_prompt).cells
    assert _figure(cell, "on", "ttft_ns") > 1.2 * _figure(cell, "off", "ttft_ns")
    assert _figure(cell, "on", "ttft_ns") < _figure(cell, "off-whole", "ttft_ns")  # some of it is hidden
    assert _figure(cell, "gated", "ttft_ns") == pytest.approx(_figure(cell, "off", "ttft_ns"), rel=0.02)


def test_prefetch_pays_at_several_ubatches(tmp_path: Path) -> None:
    (cell,) = build_report(_laguna(tmp_path / "capture", 4096, ("off", "on"))).cells
    assert _figure(cell, "on", "ttft_ns") < 0.95 * _figure(cell, "off", "ttft_ns")
    assert _figure(cell, "on", "hidden_ratio") > 0.2
    assert _figure(cell, "off", "hidden_ratio") == 0


@cache
def _shrunk_config() -> str:
    """The same pattern, a thousandth of the width: a dense layer, then 256 experts of which 10, and a shared one."""
    return json.dumps(
        {
            "model_type": "glm4_moe",
            "dtype": "bfloat16",
            "num_hidden_layers": 7,
            "first_k_dense_replace": 1,
            "hidden_size": 64,
            "intermediate_size": 256,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": 512,
            "n_routed_experts": 256,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 32,
            "n_shared_experts": 1,
            "routed_scaling_factor": 2.5,
        }
    )


def test_a_shrunk_one_moves_the_same_shares_as_real_bytes(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(_shrunk_config())
    request = RunRequest(
        cells=(GridPoint(34, n_gen=4, n_ubatch=2048, n_depth=0),),
        device=DeviceOptions("cpu", n_threads=1, link_gb_s=4.0),
        model=str(config),
        arms=ARMS,
        placements=(PlacementOptions(n_cpu_moe=6),),
        repetitions=1,
    )
    capture = make_capture(tmp_path / "capture", request)
    (cell,) = build_report(capture).cells
    copied = {arm: _figure(cell, arm, "bytes_h2d") for arm in cell.arms}
    assert copied["on"] == copied["off-whole"] == 5 * 256 * 3 * 32 * 64 * 2
    assert copied["off-whole"] / copied["off"] == pytest.approx(30_774 / 13_668, abs=0.15)
    assert 2.0 <= copied["on"] / copied["off"] <= 2.3
    assert copied["gated"] == copied["off"]
    assert cell.same_tokens is True
    assert cell.bit_identical is True
    events = capture.frame("events")
    decoded = events[(events["phase"] == "decode") & (events["kind"] == "h2d")]
    assert decoded["tensor"].dropna().empty  # below the offload threshold no weight is copied
