"""Arms of several placements: what is laid to the policy, and which arm is the partner."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboard.placements import other_placement, partner
from profiler.manifest import Manifest, ManifestArm
from profiler.planning.request import PlacementOptions
from tests.dashboard.pages import open_page, said, turn_to
from tests.profiler.runs import make_capture, small_request


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arms off, on, full with one host layer; off@2, on@2 with two."""
    folder = tmp_path_factory.mktemp("captures")
    placements = (PlacementOptions(n_gpu_layers=2), PlacementOptions(n_gpu_layers=0))
    make_capture(folder / "placed", small_request(arms=("off", "on", "full"), placements=placements, repetitions=6))
    return folder


def title(app: object) -> str:
    return app.title[0].value.replace("\N{NO-BREAK SPACE}", " ").replace("\\", "")  # type: ignore[attr-defined,no-any-return]


def test_another_placement_is_not_laid_to_prefetch(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    app = open_page(monkeypatch, root, "overview", a="off", b="on@2")
    assert title(app).startswith("on@2 (2 host layers) against off (1 host layer): ")
    text = said(app)
    assert "Prefetch made" not in text
    assert "Their weights lie elsewhere: off has weights of 1 layer in host memory" in text
    assert "on@2 has weights of 2 layers in host memory" in text
    next(button for button in app.button if "of the same placement" in button.label).click().run()
    assert (app.query_params["a"], app.query_params["b"]) == ("off@2", "on@2")
    assert "against" not in title(app)
    assert "Their weights lie elsewhere" not in said(app)


def test_the_partner_is_of_the_same_placement(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    assert open_page(monkeypatch, root, "overview", a="off@2").query_params["b"] == "on@2"
    assert open_page(monkeypatch, root, "overview").query_params["b"] == "on"


@pytest.mark.parametrize("b", ["on@2", "full"])
def test_full_and_the_same_placement_are_judged_as_ever(monkeypatch: pytest.MonkeyPatch, root: Path, b: str) -> None:
    app = open_page(monkeypatch, root, "overview", a="off@2", b=b)
    assert "of the same placement" not in "".join(button.label for button in app.button)
    assert "host layer" not in title(app)
    turn_to(app, "sweep")


def test_what_a_manifest_does_not_say_is_not_told() -> None:
    manifest = Manifest(
        arms=[
            ManifestArm("off", "off"),
            *(ManifestArm(name, "off", options={"placement": 3}) for name in ("off@2", "x@2")),
        ]
    )
    found = other_placement(manifest, "off", "off@2")
    assert found is not None
    assert "off has a placement of its own and" in found.sentence
    assert found.alike is None, "off alone would be compared with itself"
    assert partner(manifest, ["off", "x@2"], "off@2") == 1
    assert other_placement(Manifest(arms=[ManifestArm("off"), ManifestArm("off@2")]), "off", "off@2") is None
