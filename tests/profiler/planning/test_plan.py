"""What a plan warns of: cells and arms that cannot differ."""

from __future__ import annotations

from typing import Any

import pytest

from executor.devices.factory import DeviceOptions
from executor.errors import HprofError
from executor.policies.base import PolicyOptions
from profiler.planning.plan import plan_run
from profiler.planning.request import GridPoint, PlacementOptions
from tests.gguf_models import model_path
from tests.profiler.runs import small_request

ENOUGH = {"repetitions": 6}


def warnings(**changes: Any) -> list[str]:
    return list(plan_run(small_request(**(ENOUGH | changes))).warnings)


def test_a_plain_run_warns_of_nothing() -> None:
    assert warnings() == []
    assert warnings(cells=(GridPoint(0, 4, 32, 0),), policy=PolicyOptions(op_offload_min_batch=1)) == []


@pytest.mark.parametrize(("n", "pairs"), [(1, "1 pair;"), (5, "5 pairs;")])
def test_too_few_pairs_for_a_verdict(n: int, pairs: str) -> None:
    timed = DeviceOptions("cpu")
    assert warnings(repetitions=n, device=timed) == [f"-r {n} gives {pairs} a verdict needs 6 or more."]
    assert warnings(repetitions=n) == [], "sim reads no clock, so nothing scatters"


def test_pairs_of_all_boots_count() -> None:
    timed = DeviceOptions("cpu")
    assert warnings(repetitions=2, boots=3, device=timed) == []
    assert warnings(repetitions=2, boots=2, device=timed) == [
        "-r 2 --boots 2 gives 4 pairs; a verdict needs 6 or more."
    ]


def test_ubatches_below_the_offload_threshold_are_the_same_in_every_arm() -> None:
    [told] = warnings(cells=(GridPoint(64, 2, 16, 0), GridPoint(64, 2, 32, 0), GridPoint(0, 2, 32, 0)))
    assert told.startswith("-p 64 -ub 16, -p 0 -ub 32: no ubatch has the 32 tokens")
    many = tuple(GridPoint(64, 2, ub, 0) for ub in range(1, 7))
    assert "-p 64 -ub 3 and 3 more" in warnings(cells=many)[0]
    small = {"cells": (GridPoint(64, 2, 16, 0),)}
    assert warnings(**small, arms=("full", "cpu")) == []
    assert warnings(**small, placements=(PlacementOptions("attn=CPU"),)) == []  # attention is always copied


@pytest.mark.parametrize(
    ("model", "arms", "every"),
    [
        ("tiny-moe", ("off", "cache"), "every arm but cache uses"),
        ("tiny-moe", ("off", "both", "both+cache"), "every arm but both and both+cache uses"),
        ("tiny-dense", ("off", "both"), "every arm uses"),
    ],
)
def test_small_ubatches_are_served_by_a_cache_and_divided(model: str, arms: tuple[str, ...], every: str) -> None:
    changes: dict[str, Any] = {"model": model, "arms": arms, "cells": (GridPoint(64, 2, 16, 0),)}
    told, *_ = warnings(**changes, policy=PolicyOptions(cache_bytes=64 << 20))
    assert every in told


def test_a_prompt_shorter_than_a_ubatch() -> None:
    assert warnings(cells=(GridPoint(40, 2, 64, 0),)) == [
        "-p 40 with -ub 64: the whole prompt is one ubatch, shorter than -ub."
    ]


def test_cells_that_would_repeat_a_measurement_are_left_out() -> None:
    sizes = (256, 32, 64, 128, 64)
    plan = plan_run(small_request(**ENOUGH, cells=tuple(GridPoint(64, 2, ub, d) for ub in sizes for d in (0, 8))))
    assert [(cell.n_ubatch, cell.n_depth) for cell in plan.request.cells] == [(64, 0), (64, 8), (32, 0), (32, 8)]
    assert list(plan.warnings) == [
        "-p 64 -ub 256, -p 64 -ub 128: left out, as the smaller -ub holds the whole prompt and measures the same; "
        "give -p 256 to fill them."
    ]
    assert warnings(cells=(GridPoint(0, 2, 32, 0), GridPoint(0, 2, 64, 0)), arms=("full",)) == [
        "-p 0 -ub 64: left out, as the smaller -ub holds the whole prompt and measures the same."
    ]


def test_arms_that_need_experts_on_a_dense_model() -> None:
    policy = PolicyOptions(cache_bytes=1 << 20)
    [told] = warnings(arms=("off", "hot", "on+cache"), policy=policy)
    assert told == "tiny-dense has no experts: hot does what on does, on+cache does what on does."
    assert warnings(model="tiny-moe", arms=("off", "hot")) == []


def test_sim_runs_no_router() -> None:
    path = str(model_path("qwen3moe-e8k2-Q4_K"))
    [told] = warnings(model=path, layers=None)
    assert told.startswith("Device sim computes nothing: a routing model chooses the experts")
    assert warnings(model=path, layers=None, routing="uniform") == []
    assert warnings(kind="cpu", model=path, layers=None) == []
    with pytest.raises(HprofError, match="--routing model: device sim computes nothing"):
        warnings(model=path, layers=None, routing="model")
