"""The Advise page says what `hprof advise --json` says; pages that have nothing for a capture say so beforehand."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

import hprof
from dashboard.empty_pages import NO_LAYERS, NO_MEMORY, NO_ROUTER, NO_UBATCHES, why_empty
from tests.dashboard.pages import open_page, said
from tests.profiler import makers
from tests.support import ROOT


def test_the_front_is_the_commands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "traces" / "example", tmp_path / "example")
    app = open_page(monkeypatch, tmp_path, "advise")
    assert app.title[0].value == "What should I set?"
    assert "**Set:** `--arms" in said(app)
    (table,) = (one.value for one in app.dataframe if "TTFT, ms" in one.value)
    command = shlex.split(next(block.value for block in app.code if "hprof advise" in block.value))
    words = [str(tmp_path / "example") if word == "example" else word for word in command[1:]]
    capsys.readouterr()
    assert hprof.main([*words, "--json"]) == 0
    front = orjson.loads(capsys.readouterr().out)["pareto"]
    assert table["arm"].tolist() == [one["arm"] for one in front]
    assert table["TTFT, ms"].tolist() == pytest.approx([one["ttft_ns_predicted"] / 1e6 for one in front], rel=1e-3)
    assert table["memory, GiB"].tolist() == pytest.approx([one["vram_bytes"] / 2**30 for one in front], rel=1e-3)
    chart = app.get("plotly_chart")[0].proto
    assert f"{len(front)} settings that no other beats" in chart.alt
    app.number_input(key="advise-budget").set_value(0.01).run()
    assert not app.exception
    app.text_input(key="advise-prompt").set_value("none of it").run()
    assert not app.exception
    assert "none of it" in said(app), "what the command would refuse is a sentence"


def test_the_first_budget_is_one_that_something_fits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Advice counts 384 MiB of dequantised experts, which a simulated device did not hold."""
    run = "run -m qwen3-30b-a3b --layers 2 --device sim --arms off,cpu -p 64 -n 2 -ub 64 -r 1 -o"
    assert hprof.main([*run.split(), str(tmp_path / "moe")]) == 0
    app = open_page(monkeypatch, tmp_path, "advise")
    assert "**Set:** `--arms" in said(app)
    assert not app.warning


@pytest.mark.parametrize(
    ("make", "faint"),
    [
        (makers.dense_off_on, {"selective": NO_ROUTER}),
        (makers.moe_off_on, {}),
        (makers.imported_without_passes, {"selective": NO_UBATCHES, "layers": NO_LAYERS, "memory": NO_MEMORY}),
        (makers.passes_without_events, {"selective": NO_ROUTER, "layers": NO_LAYERS}),
    ],
)
def test_pages_that_have_nothing_say_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: Callable[[Path], object], faint: dict[str, str]
) -> None:
    make(tmp_path / "c")
    app = open_page(monkeypatch, tmp_path, "overview")
    found = why_empty(app.session_state["_choice"])
    assert faint.items() <= found.items()
    assert set(found) <= {*faint, "timeline", "sweep", "memory", "what-if", "advise"}
    for page, reason in faint.items():
        assert reason in said(open_page(monkeypatch, tmp_path, page)), "the page says the same"


def test_for_llama_cpp_the_page_speaks_its_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "traces" / "example", tmp_path / "example")
    app = open_page(monkeypatch, tmp_path, "advise", **{"for": "llama.cpp"})
    to_set = next(block.value for block in app.markdown if block.value.startswith("**Set:**"))
    assert "llama-server -m" in to_set
    assert "--arms" not in to_set
    assert "llama-cli takes the same flags, and llama-bench too" in said(app)
    assert any("llama-bench -m" in block.value for block in app.code)
