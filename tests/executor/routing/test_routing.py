"""Synthetic routing: the distinct shares that it must reproduce, and that it depends on the position alone."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from executor.errors import HprofError
from executor.routing.routers import RandomRouting, Routing, draw_popularity
from executor.routing.spec import DEFAULT_ROUTING, default_routing, routing_from_spec
from tests.executor.routing.law import expected_distinct, inclusion, predicted_distinct


def make(spec: str, n_experts: int = 256, n_used: int = 10, seed: int = 0) -> Routing:
    return routing_from_spec(spec, layers=range(28), n_experts=n_experts, n_used=n_used, seed=seed)


def distinct_share(routing: Routing, layer: int, n_tokens: int) -> float:
    parts = max(1, 340 // n_tokens)
    ids = routing.ids(layer, 0, parts * n_tokens).reshape(parts, -1)
    return float(np.mean([len(np.unique(part)) for part in ids])) / 256


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("n_tokens", "share"), [(34, 0.44), (2048, 0.84)])
def test_default_reproduces_the_measured_distinct_shares(seed: int, n_tokens: int, share: float) -> None:
    routing = make(DEFAULT_ROUTING, seed=seed)
    mean = np.mean([distinct_share(routing, layer, n_tokens) for layer in range(28)])
    assert mean == pytest.approx(share, abs=0.01)


def test_few_experts_are_used_nearly_evenly_and_none_is_dead() -> None:
    spec = default_routing(8)
    routing = routing_from_spec(spec, layers=range(32), n_experts=8, n_used=2, seed=0)
    shares = np.stack([np.bincount(routing.ids(layer, 0, 2048).ravel(), minlength=8) / 4096 for layer in range(32)])
    assert shares.min() > 0.03
    assert shares.max() < 0.3
    assert default_routing(128) == DEFAULT_ROUTING


@pytest.mark.parametrize("spec", ["lognormal", "uniform", "zipf", "dirichlet", "lognormal:repeat=0.3"])
@pytest.mark.parametrize("n_tokens", [1, 34, 500])
def test_closed_form_predicts_the_draws(spec: str, n_tokens: int) -> None:
    routing = make(spec)
    drawn = np.mean([distinct_share(routing, layer, n_tokens) for layer in range(6)])
    predicted = np.mean([predicted_distinct(routing, layer, n_tokens) for layer in range(6)]) / 256
    assert drawn == pytest.approx(predicted, abs=0.015)


@pytest.mark.parametrize("spec", ["lognormal", "zipf:repeat=0.45"])
def test_a_token_routes_the_same_however_the_prompt_is_cut(spec: str) -> None:
    routing = make(spec)
    whole = routing.ids(3, 0, 300)
    pieces = [routing.ids(3, start, n) for start, n in ((0, 63), (63, 1), (64, 130), (194, 106))]
    assert np.array_equal(np.concatenate(pieces), whole)
    assert whole.dtype == np.int64
    assert not np.array_equal(whole, routing.ids(4, 0, 300))
    assert not np.array_equal(whole, make(spec, seed=9).ids(3, 0, 300))


@pytest.mark.parametrize("spec", ["lognormal", "uniform:repeat=0.9", "dirichlet:alpha=0.01"])
@pytest.mark.parametrize(("n_experts", "n_used"), [(256, 10), (8, 2), (9, 9), (12, 7)])
def test_experts_of_a_token_differ_and_exist(spec: str, n_experts: int, n_used: int) -> None:
    ids = np.sort(make(spec, n_experts, n_used).ids(0, 5, 200), axis=1)
    assert ids.shape == (200, n_used)
    assert ids.min() >= 0
    assert ids.max() < n_experts
    assert (np.diff(ids, axis=1) > 0).all()


def test_repeat_keeps_experts_from_token_to_token() -> None:
    def repeats(spec: str) -> float:
        ids = make(spec).ids(0, 0, 1000)
        return float((ids[1:, :, None] == ids[:-1, None, :]).any(axis=2).mean())

    assert repeats("uniform:repeat=0.5") == pytest.approx(0.5 + 0.5 * 10 / 256, abs=0.03)
    assert repeats("uniform") == pytest.approx(10 / 256, abs=0.02)


def test_popularity_orders_the_choices() -> None:
    routing = make("lognormal:sigma=0.5,dead=0.2")
    assert isinstance(routing, RandomRouting)
    popularity = routing.popularity(2)
    ids = routing.ids(2, 0, 4000)
    assert popularity.sum() == pytest.approx(1)
    assert set(np.unique(ids)) <= set(np.flatnonzero(popularity))
    counts = np.bincount(ids.ravel(), minlength=256) / ids.size
    assert np.corrcoef(counts, popularity)[0, 1] > 0.99


def test_dead_share_leaves_enough_experts() -> None:
    rng = np.random.default_rng(0)
    weights = draw_popularity("lognormal", {"sigma": 1.0, "dead": 0.999}, 16, 4, rng)
    assert np.count_nonzero(weights) >= 4
    assert inclusion(weights, 4).sum() == pytest.approx(4)


def test_expected_distinct_counts_at_least_the_first_token() -> None:
    chances = inclusion(np.full(32, 1 / 32), 4)
    assert expected_distinct(chances, 1) == pytest.approx(4)
    assert expected_distinct(chances, 10_000) == pytest.approx(32)
    assert expected_distinct(chances, 50, repeat=1.0) == pytest.approx(4)


def test_label_says_all_numbers() -> None:
    assert make("zipf:s=2", seed=7).label == "zipf:s=2,dead=0.16,repeat=0,seed=7"
    assert isinstance(make(make("zipf").label.replace(",seed=0", "")), RandomRouting)


def write_trace(path: Path, rows: list[str]) -> str:
    path.write_text("\n".join(["pos,layer,id0,id1", *rows]) + "\n")
    return f"trace:{path}"


def from_trace(spec: str) -> Routing:
    return routing_from_spec(spec, layers=(0, 5), n_experts=4, n_used=2, seed=0)


def test_trace_is_replayed_and_wraps(tmp_path: Path) -> None:
    spec = write_trace(tmp_path / "t.csv", ["0,0,1,2", "1,0,3,0", "0,5,0,1", "1,5,0,2"])
    routing = from_trace(spec)
    assert routing.ids(0, 1, 3).tolist() == [[3, 0], [1, 2], [3, 0]]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["0,0,1,2", "0,5,1,4"], "line 3"),
        (["0,0,1,1", "0,5,1,2"], "line 2"),
        (["0,0,1,2", "2,0,1,2", "0,5,1,2"], "without gaps"),
        (["0,0,1,2"], "layer 5"),
        (["0,0,1,x"], "whole numbers"),
        (["0,0,1,"], "whole numbers"),
        (["0,0"], "whole numbers"),
        (["0,-1,1,2"], "layers must lie from 0"),
        (["0,9223372036854775807,1,2"], "layers must lie from 0"),
        (["0,0,true,false"], "whole numbers"),
        ([], "no rows"),
    ],
)
def test_bad_traces_are_refused_in_one_sentence(tmp_path: Path, rows: list[str], words: str) -> None:
    with pytest.raises(HprofError, match=words) as caught:
        from_trace(write_trace(tmp_path / "t.csv", rows))
    assert "\n" not in str(caught.value)
    assert "t.csv" in str(caught.value)


def test_a_header_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"pos,layer,\xff\xfe0,id1\n0,0,1,2\n")
    with pytest.raises(HprofError, match="is not a CSV of whole numbers"):
        from_trace(f"trace:{path}")


def test_trace_of_another_width_or_absent(tmp_path: Path) -> None:
    spec = write_trace(tmp_path / "t.csv", ["0,0,1,2"])
    with pytest.raises(HprofError, match="id0 to id2"):
        routing_from_spec(spec, layers=(0,), n_experts=4, n_used=3, seed=0)
    with pytest.raises(HprofError, match="cannot be read"):
        from_trace("trace:no/such.csv")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("lognormall", "did you mean lognormal"),
        ("lognormal:sigm=1", "sigma, dead, repeat"),
        ("lognormal:sigma=x", "sigma is 'x'"),
        ("uniform:repeat=1", "below 1"),
        ("zipf:s=nan", "must be a number"),
    ],
)
def test_bad_specs_are_refused(spec: str, words: str) -> None:
    with pytest.raises(HprofError, match=words):
        make(spec)


def test_a_pipe_is_no_trace(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(HprofError, match="pipe is not a regular file"):
        from_trace(f"trace:{tmp_path / 'pipe'}")
