"""Selective copy tells the same of experts as the report: of measured passes alone."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from profiler.metrics.experts import distinct_by_ubatch, typical_use
from profiler.metrics.passes import measured_passes
from profiler.planning.request import GridPoint
from tests.dashboard.pages import open_page, said
from tests.profiler.runs import make_capture, small_request


def use(experts: pa.Table) -> pd.DataFrame:
    return typical_use(distinct_by_ubatch(experts))


def test_experts_touched_are_of_measured_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cell = GridPoint(n_prompt=64, n_gen=4, n_ubatch=16, n_depth=0)
    request = small_request(model="tiny-moe", arms=("off", "on"), cells=(cell,), repetitions=3)
    capture = make_capture(tmp_path / "moe", request)
    everything = capture.table("experts")
    ids = measured_passes(capture.passes)["pass_id"].tolist()
    measured = use(everything.filter(pc.is_in(everything["pass_id"], pa.array(ids, pa.int32()))))
    assert measured["distinct_share"].tolist() != use(everything)["distinct_share"].tolist()
    app = open_page(monkeypatch, tmp_path, "selective", capture="moe")
    (shown,) = (one.value for one in app.dataframe if "distinct share, %" in one.value)
    assert shown["distinct share, %"].tolist() == pytest.approx((measured["distinct_share"] * 100).tolist(), rel=1e-3)


def test_what_crossed_the_bus_is_told_of_each_arm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cell = GridPoint(n_prompt=64, n_gen=4, n_ubatch=64, n_depth=0)
    request = small_request(model="tiny-moe", arms=("off", "on", "cpu", "both"), cells=(cell,), repetitions=2)
    make_capture(tmp_path / "moe", request)
    app = open_page(monkeypatch, tmp_path, "selective", capture="moe", b="both")
    (shown,) = (one.value for one in app.dataframe if "distinct share, %" in one.value)
    prompt = shown[shown["n_tokens"] == 64].iloc[0]
    assert prompt["copied by off, %"] == prompt["distinct share, %"] < prompt["copied by on, %"] == 100
    assert prompt["copied by cpu, %"] == 0
    assert (shown.loc[shown["phase"] == "decode", "copied by on, %"] == 0).all()
    of_off, of_both = (line for line in said(app).splitlines() if " moved " in line)
    assert "less than whole copies, what the CPU computed in their place among it." in of_both
    assert "less than whole copies." in of_off
