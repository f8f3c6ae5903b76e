"""What a run needs in memory, and the advice when it does not fit."""

from __future__ import annotations

import psutil
import pytest
import torch

from executor.devices.factory import DeviceOptions
from executor.errors import HprofError
from executor.load import load_model
from executor.placement import place
from executor.session import Session
from profiler.abba import Cell
from profiler.memory import count_needs, state_bytes
from profiler.plan import plan_run
from profiler.request import RunRequest
from tests.profiler.runs import small_request

GIB = 1 << 30


def plan_with_free(monkeypatch: pytest.MonkeyPatch, free_bytes: int, request: RunRequest) -> None:
    memory = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=free_bytes))
    plan_run(request)


def test_states_are_counted_as_they_are_reserved() -> None:
    plan = plan_run(small_request("cpu", cells=(Cell(64, 3, 32, 40),)))
    [setup] = plan.setups
    session = Session(plan.model, setup.placement, setup.arms, plan.session)
    try:
        reserved = sum(lane.state_bytes for lane in session._plant.lanes)
    finally:
        session.close()
    assert state_bytes(plan.model, plan.session.max_positions, torch.float32) == reserved > 0


def test_needs_add_up() -> None:
    request = small_request("cpu", layers=None)
    model, session = load_model("tiny-dense"), plan_run(request).session
    placement = place(model.tensors)
    host = sum(model.tensors[name].n_bytes for name in placement.host)
    needs = count_needs(model, placement, ["off", "on"], session, request.cells)
    assert needs.host == host
    assert needs.resident == model.n_bytes - host
    assert needs.kept_wide == host // 34 * 32 * 4  # Q8_0 blocks as float32: decoding computes on the host
    assert needs.logits == 3 * 8192 * 4
    assert count_needs(model, placement, ["full"], session, request.cells).resident == model.n_bytes
    prompt_only = (Cell(64, 0, 32, 0),)
    assert count_needs(model, placement, ["off"], session, prompt_only).kept_wide == 0
    assert count_needs(model, placement, ["cpu"], session, prompt_only).kept_wide > 0
    assert count_needs(model, placement, ["off"], session, (Cell(65, 0, 32, 0),)).kept_wide > 0  # one token is left


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"cells": (Cell(64, 0, 32, 4_000_000),)}, "the context alone takes 15.3 GiB: lower -d, -p or -n"),
        ({"cells": (Cell(1, 400_000, 32, 0),)}, "the logits of -n tokens take 12.2 GiB: lower -n"),
        ({"model": "llama-3.1-8b", "layers": None}, "weights computed on the host take 21.0 GiB dequantised"),
        ({"model": "llama-3.1-8b", "layers": None, "cells": (Cell(64, 0, 64, 0),)}, "run a slice with --layers"),
    ],
)
def test_the_largest_part_gives_the_advice(
    changes: dict[str, object], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HprofError, match=r"of memory for this run and 4\.0 GiB are free") as caught:
        plan_with_free(monkeypatch, 4 * GIB, small_request("cpu", **changes))
    assert advice in str(caught.value)


def test_what_fits_and_what_is_simulated_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    plan_with_free(monkeypatch, 4 * GIB, small_request("cpu"))
    plan_with_free(monkeypatch, 0, small_request(device=DeviceOptions("sim"), model="llama-3.1-8b", layers=None))
