"""Links from findings to the timeline name the arm, the cell and the repetition, whichever arm is A."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from streamlit.testing.v1 import AppTest

import hprof
from profiler.findings import find
from tests.dashboard.pages import open_page
from tests.profiler import makers


def links(app: AppTest) -> list[dict[str, str]]:
    found = [dict(parse_qsl(one.proto.query_string)) for one in app.get("page_link")]
    return [one for one in found if "at" in one]


def test_a_link_leads_to_the_findings_pass_also_after_a_swap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    capture = makers.dense_off_on(tmp_path / "c")
    passes = {one["pass_id"]: one for one in hprof.open(str(tmp_path / "c")).passes.to_dict("records")}
    told = [passes[moment.pass_id] for finding in find(capture) for moment in finding.moments]
    known = {(str(one["arm"]), str(one["repetition"])) for one in told}
    app = open_page(monkeypatch, tmp_path, "overview", a="off", b="on")
    first = links(app)
    assert {(one[one["at"][0]], one["rep"]) for one in first} == known
    app.button(key="swap").click().run()
    swapped = links(app)
    assert [(one["a"], one["b"]) for one in swapped] == [("on", "off")] * len(first)
    assert {(one[one["at"][0]], one["rep"]) for one in swapped} == known
    assert {one["cell"] for one in [*first, *swapped]} == {first[0]["cell"]}
