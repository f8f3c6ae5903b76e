"""The What if page: predictions by a fit to the capture, other settings, and why there are none for some captures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import hprof
from tests.dashboard.figures_of_pages import as_json, cell_name, median, page_of, same, table
from tests.dashboard.pages import open_page, said
from tests.profiler import makers
from tests.support import ROOT


def test_a_sweep_is_predicted_with_bands_and_measured_points(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "traces" / "example-sweep", tmp_path / "sweep")
    app = open_page(monkeypatch, tmp_path, "what_if")
    assert "Predicted by a fit to this capture" in said(app)
    app.number_input(key="link").set_value(5.0).run()
    assert not app.exception
    app.selectbox(key="gpu").set_value("rtx4090").run()
    assert not app.exception
    assert "By the rates of rtx4090 alone" in said(app)
    app.number_input(key="budget").set_value(0.01).run()
    assert "too small" in said(app)


def test_a_link_slower_than_any_bus_is_shown_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "traces" / "example", tmp_path / "slow")  # 0.1 GB/s
    app = open_page(monkeypatch, tmp_path, "what_if")
    assert not app.exception
    assert "whose copies reach 0." in said(app)


def test_an_arm_that_was_not_measured_is_predicted_beside_those_that_were(tmp_path: Path) -> None:
    path = tmp_path / "c"
    words = "-m tiny-moe --layers 2 --device sim --arms off,on -p 64 -n 2 -ub 32,64 -r 1"
    assert hprof.main(["run", *words.split(), "-o", str(path)]) == 0
    with page_of(path, "what_if") as app:
        assert list(table(app, "arm", "predicted", "measured")["arm"]) == ["off", "on"]
        assert not {"off", "on"} & set(app.selectbox(key="arm").options)
        app.selectbox(key="arm").set_value("hot").run()
        assert not app.exception
        at = table(app, "arm", "predicted", "measured").set_index("arm")
        assert list(at.index) == ["off", "on", "hot"]
        assert at["measured"].isna().tolist() == [False, False, True]


def test_a_capture_without_a_command_line_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    makers.dense_off_on(tmp_path / "c")
    assert "cannot be fitted to" in said(open_page(monkeypatch, tmp_path, "what_if"))


def test_what_was_measured_is_of_the_cells_own_tokens(tmp_path: Path) -> None:
    """Of several numbers of generated tokens each arm has one measured value, and a ubatch is no larger than its
    prompt."""
    path = tmp_path / "c"
    words = "-m tiny-dense --layers 2 --device sim --arms off,on -p 64 -n 2,4 -ub 128 -r 1"
    assert hprof.main(["run", *words.split(), "-o", str(path)]) == 0
    for cell in as_json("report", str(path))["cells"]:
        with page_of(path, "what_if", cell=cell_name(cell)) as app:
            at = table(app, "arm", "predicted", "measured").set_index("arm")
            same(at["measured"], [median(cell["arms"][arm], "ttft_ns") for arm in at.index])
            assert len(at) == 2
