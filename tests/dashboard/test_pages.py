"""Every page over every kind of capture, and what the pages say of captures with known figures."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import orjson
import pandas as pd
import pytest

import dashboard
import hprof
from dashboard.overview.ranking import ranked
from dashboard.show import as_csv, as_parquet
from executor.devices.factory import DeviceOptions
from executor.units import format_ns
from profiler.importers import TraceInput, import_files
from profiler.report.from_which_size import from_which_size
from profiler.report.residency import all_residency
from profiler.report.shown_cells import telling_figure
from tests.dashboard.pages import PAGES, open_page, said, turn_to
from tests.profiler import makers
from tests.profiler.runs import make_capture, small_request

DATA = Path(__file__).parents[1] / "data"
_MEASURED = re.compile(r"^[-+]?[\d,.]+ (ns|us|ms|s|B|kB|MB|GB|%|GB/s)$")
KINETO = DATA / "kineto" / "h200_llama8b_4layers_off.json.gz"


def callables(path: Path) -> None:
    """What `hprof.ab` keeps."""
    with hprof.ab(path, repetitions=1, record=False) as ab:
        ab.arm("off", lambda: sum(range(100)))
        ab.arm("on", lambda: sum(range(10)))


def predicted(path: Path) -> None:
    """What `hprof predict -o` keeps."""
    hprof.main(
        ["predict", "-m", "tiny-moe", "-ub", "32,64", "-p", "64", "-n", "2", "--arms", "off,on,hot", "-o", str(path)]
    )


def one_import(path: Path) -> None:
    """One arm of another tool, whose passes have no sizes."""
    import_files([TraceInput(KINETO, "off")], path)


MAKERS = {
    "dense": makers.dense_off_on,
    "moe": makers.moe_off_on,
    "interrupted": makers.interrupted,
    "imported": makers.imported_without_passes,
    "llama": makers.passes_without_events,
    "empty": makers.empty,
    "warm-ups": makers.killed_while_warming_up,
    "predicted": predicted,
    "one-import": one_import,
    "callables": callables,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captures")
    for name, make in MAKERS.items():
        make(folder / name)
    return folder


@pytest.mark.parametrize("capture", MAKERS)
def test_every_page_shows_something_sensible(monkeypatch: pytest.MonkeyPatch, root: Path, capture: str) -> None:
    app = open_page(monkeypatch, root, "overview", capture=capture)
    for page in PAGES:
        turn_to(app, page)
        assert app.title[0].value
        assert not app.error
        drawn = app.get("plotly_chart") or app.get("bidi_component") or app.metric
        assert drawn or app.info or page == "import_", f"{page} of {capture} is empty"
        assert "nan" not in said(app).split()


def test_a_run_killed_while_warming_up_says_so(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    text = said(open_page(monkeypatch, root, "overview", capture="warm-ups"))
    assert "No measured pass yet" in text
    assert "3 passes for warming up" in text
    assert "were completed." not in text
    assert "Nothing to fix was found" not in text


@pytest.mark.parametrize(("capture", "badge"), [("predicted", "PREDICTED"), ("dense", None)])
def test_what_was_not_timed_has_a_badge_on_every_page(
    monkeypatch: pytest.MonkeyPatch, root: Path, capture: str, badge: str | None
) -> None:
    app = open_page(monkeypatch, root, "overview", capture=capture)
    assert ("nothing was timed" in said(app)) is (badge is not None)
    if badge is not None:
        turn_to(app, "timeline")
        assert f"{badge}, nothing was timed" in said(app)
        assert "inconclusive" not in said(app)


def test_the_error_box_offers_no_search_engine() -> None:
    config = tomllib.loads((Path(dashboard.__file__).parent / ".streamlit" / "config.toml").read_text())
    assert config["client"]["showErrorLinks"] is False


def test_overview_gives_the_reports_figures(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    app = open_page(monkeypatch, root, "overview", capture="dense")
    title = app.title[0].value.replace("\\", "")
    assert title.startswith("Prefetch made the first token and prefill 1.39 x and decode")
    values = {metric.label: metric.value for metric in app.metric}
    assert values["Time to first token"] == "462 us"
    assert values["Exposed copy time"] == "300 us"
    assert "A off: 642 us" in said(app)
    assert "same tokens" in said(app)


def test_baseline_can_be_swapped(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    app = open_page(monkeypatch, root, "overview", capture="dense", a="on", b="off")
    assert app.title[0].value.replace("\\", "").startswith("Copying in line made the first token and prefill 0.72 x")


def test_the_best_arm_is_first_and_a_click_makes_it_b(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    app = open_page(monkeypatch, root, "overview", capture="predicted")
    cell = next(one for one in hprof.open(str(root / "predicted")).report().cells if one.n_ubatch == 64)
    names = ranked(cell, ["full"])
    assert names[0] == max(("on", "hot", "off"), key=lambda name: cell.arms[name].median("prefill_tokens_per_s") or 0)
    buttons = [button.key for button in app.button if str(button.key).startswith("make-b-")]
    assert buttons == [f"make-b-{name}" for name in names if name != "off"]
    app.button(key="make-b-hot").click().run()
    assert app.query_params["b"] == "hot"
    app.button(key="swap").click().run()
    assert (app.query_params["a"], app.query_params["b"]) == ("hot", "off")


def test_the_arms_are_a_table_of_numbers(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    app = open_page(monkeypatch, root, "overview", capture="predicted")
    (table,) = (one.value for one in app.dataframe if "TTFT, ms" in one.value)
    assert set(table["arm"]) == {"off", "on", "hot"}
    fast = table["times as fast as off"]
    assert fast.is_monotonic_decreasing
    assert (table["TTFT, ms"] * fast).std() < table["TTFT, ms"].std() / 2  # whoever is twice as fast takes half as long


def test_address_names_the_whole_choice(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    app = open_page(monkeypatch, root, "overview", capture="dense")
    assert app.query_params["capture"] == "dense"
    assert app.query_params["a"] == "off"
    assert app.query_params["b"] == "on"
    assert app.query_params["cell"] == "p8-n2-ub4-d0"


@pytest.mark.parametrize("value", ["../../etc", "<script>", "", "a" * 5000])
def test_unknown_values_in_the_address_fall_back(monkeypatch: pytest.MonkeyPatch, root: Path, value: str) -> None:
    names = ("capture", "a", "b", "cell", "rep", "figure", "axis", "arm", "ubatch")
    app = open_page(monkeypatch, root, "sweep", **dict.fromkeys(names, value))
    assert not app.error
    assert value not in said(app) or not value


def test_interrupted_captures_say_so(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    text = said(open_page(monkeypatch, root, "overview", capture="interrupted"))
    assert "still running, or was killed" in text
    assert "No verdict yet: 2 of the 6 repetitions that it needs" in text


def test_imports_without_passes_show_their_devices(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    app = open_page(monkeypatch, root, "overview", capture="imported")
    assert [metric.value for metric in app.metric] == ["50.0 %", "0 %"]
    assert "Process 4711, device 1" in said(app)
    assert "which layer a copy belongs to" in said(app)
    assert not [one.value for one in app.markdown if one.value.startswith("#")], "headings skip no level"


def test_single_arm_has_nothing_to_compare_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_capture(tmp_path / "c", small_request(arms=("off",)))
    app = open_page(monkeypatch, tmp_path, "overview", capture="c")
    assert app.title[0].value.startswith("One arm, off")
    for page in PAGES:
        turn_to(app, page)
        assert "Arm B" not in [box.label for box in app.selectbox]


def test_no_capture_at_all_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    app = open_page(monkeypatch, tmp_path, "overview")
    assert "There is no capture here yet" in said(app)
    assert "hprof run" in app.code[0].value
    assert open_page(monkeypatch, tmp_path, "import_").title[0].value == "Import"


def test_a_root_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    app = open_page(monkeypatch, tmp_path / "none", "overview")
    assert "does not exist" in app.error[0].value


def test_charts_have_alternative_text_and_a_table(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    app = open_page(monkeypatch, root, "overview", capture="dense")
    for page in ("overview", "timeline", "sweep", "layers"):
        turn_to(app, page)
        charts = app.get("plotly_chart")
        assert charts
        assert all(chart.proto.alt for chart in charts)
        assert len(app.dataframe) >= len(charts)
        assert app.get("download_button")


def test_sweep_draws_the_judged_figures(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    app = open_page(monkeypatch, root, "sweep", capture="dense", figure="prefill_tokens_per_s")
    spec = orjson.loads(app.get("plotly_chart")[-1].proto.spec)
    limits = ["limit of off: max(C, T)", "limit of on: max(C, T)"]
    assert [trace["name"] for trace in spec["data"]] == ["off", "on", *limits], "limits are drawn over the lines"
    assert app.query_params["figure"] == "prefill_tokens_per_s"


def test_cells_are_found_by_the_sizes_that_differ(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    app = open_page(monkeypatch, root, "sweep", capture="predicted")
    choice = app.session_state["_choice"]
    assert choice.cell_with(n_depth=0, n_ubatch=32).n_ubatch == 32
    assert choice.cell_with(n_depth=4096, n_ubatch=32) is None


def test_a_finding_is_a_line_that_leads_to_the_timeline(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    app = open_page(monkeypatch, root, "overview", capture="dense")
    found = hprof.open(str(root / "dense")).report().findings
    lines = [one.label.replace("\\", "") for one in app.expander if "(" in one.label]
    for finding in found:
        (line,) = (one for one in lines if finding.rule.replace("-", " ").capitalize() in one)
        where, _, what = finding.evidence.partition(": ")
        assert what[:40] in line
        assert line.endswith(where.partition(",")[0].removeprefix("Arm ") + ", GPU 0"), "where, behind what"
    assert len(app.get("page_link")) == len(found) > 0


def test_sizes_are_chosen_one_by_one(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    app = open_page(monkeypatch, root, "overview", capture="predicted")
    (sizes,) = (box for box in app.selectbox if box.label == "Ubatch")
    assert "Depth" not in [box.label for box in app.selectbox], "all cells share it"
    sizes.select(32).run()
    assert app.query_params["cell"] == "p64-n2-ub32-d0"
    assert "ubatch 32" in said(app)


def test_one_arms_exposed_copy_is_told_in_one_value(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    app = open_page(monkeypatch, root, "overview", capture="dense")
    (card,) = (one.value for one in app.metric if one.label == "Exposed copy time")
    assert f"With on, {card} of its" in said(app)
    (spent,) = (one.value for one in app.dataframe if "part" in one.value)
    row = spent[spent["part"] == "exposed copy"].iloc[0]
    assert format_ns(row["B  on, us"] * 1000) == card
    (figures,) = (one.value for one in app.dataframe if "meaning" in one.value)
    exposed = figures[figures["figure"] == "exposed copy"].iloc[0]
    assert (exposed["unit"], format_ns(exposed["B on"] * 1000)) == ("us", card)


def test_page_and_terminal_tell_the_same_figure_first(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    report = hprof.open(str(root / "predicted")).report()
    app = open_page(monkeypatch, root, "overview", capture="predicted")
    over = from_which_size(report.cells, report.cells[-1], "off", "on")
    assert over is not None
    assert over.figure == telling_figure(report.cells[0]) == "prefill_tokens_per_s"
    assert over.sentence("Prefetch") in said(app)
    turn_to(app, "sweep")
    assert app.query_params["figure"] == over.figure
    factors = app.dataframe[0].value.drop(columns="depth").to_numpy()[0]
    assert factors.tolist() == pytest.approx(over.factors, rel=1e-3), "four digits are shown"


@pytest.mark.parametrize("capture", ["dense", "moe", "imported", "predicted"])
def test_tables_hold_numbers(monkeypatch: pytest.MonkeyPatch, root: Path, capture: str) -> None:
    app = open_page(monkeypatch, root, "overview", capture=capture)
    for page in ("overview", "timeline", "sweep", "selective", "layers", "memory"):
        turn_to(app, page)
        for table in (one.value for one in app.dataframe):
            if "setting" in table:
                continue  # what was asked for, as it was written
            texts = table.select_dtypes(include=["object", "string", "category"])
            told = [text for column in texts for text in texts[column].dropna().astype(str) if _MEASURED.match(text)]
            assert not told, f"{page}: {told[:2]!r}"


def test_passes_that_an_import_took_from_events_are_compared_by_their_length(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arms = [TraceInput(DATA / "kineto" / f"h200_llama8b_4layers_{arm}.json.gz", arm) for arm in ("off", "on")]
    import_files(arms, tmp_path / "ab")
    app = open_page(monkeypatch, tmp_path, "overview")
    assert (
        app.title[0].value.replace("\\", "")
        == "The arm on against off: the pass 1.34 x as fast, by too few runs for a verdict."
    )  # whatever its name
    (card,) = (one for one in app.metric if one.label == "The whole pass")
    assert (card.value, card.delta) == ("35.1 ms", "1.34 x as fast: 1 of 6 boots")
    turn_to(app, "sweep")
    assert "say no times" not in said(app)
    assert app.dataframe[-1].value["median, ms"].round(1).tolist()[-1] == 35.1


def test_memory_says_what_slots_cost(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    assert "on reserves 15.6 KiB for slots and bank" in said(open_page(monkeypatch, root, "memory", capture="dense"))


def test_memory_says_what_each_device_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = DeviceOptions("sim", n_devices=2)
    capture = make_capture(tmp_path / "two", small_request(device=device, repetitions=1))
    app = open_page(monkeypatch, tmp_path, "memory", capture="two")
    (table,) = (one.value for one in app.dataframe if "VRAM held, MiB" in one.value)
    assert table[["arm", "device"]].to_numpy().tolist() == [["off", 0], ["off", 1], ["on", 0], ["on", 1]]
    held = all_residency(capture.manifest)["on"].by_device
    shown = (table["VRAM held, MiB"] * 2**20).tolist()[2:]
    assert shown == pytest.approx([one.n_bytes for one in held], rel=1e-3), "four digits are shown"


def test_memory_of_one_device_has_no_such_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_capture(tmp_path / "one", small_request(repetitions=1))
    app = open_page(monkeypatch, tmp_path, "memory", capture="one")
    assert not [one for one in app.dataframe if "VRAM held, MiB" in one.value]


def test_csv_defuses_formulas_and_parquet_keeps_types() -> None:
    frame = pd.DataFrame({"name": ["=cmd()", "-pw 1", "plain"], "n": [1, -2, 3]})
    assert as_csv(frame).decode().splitlines() == ["name,n", "'=cmd(),1", "'-pw 1,-2", "plain,3"]
    assert as_parquet(frame)[:4] == b"PAR1"


def test_a_large_capture_shows_the_same_figures_in_the_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    makers.dense_off_on(tmp_path / "c")
    pages = []
    for limit in (1_000_000, 0):
        monkeypatch.setattr("dashboard.choice._LARGE", limit)
        pages.append(open_page(monkeypatch, tmp_path, "overview"))
    shown = [[(card.label, card.value, card.delta) for card in page.metric] for page in pages]
    assert shown[0] == shown[1]
    assert len(shown[0]) == 6
    assert said(pages[0]) == said(pages[1])


def test_layers_of_an_arm_that_copies_ahead_say_what_they_are_worth(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    makers.dense_off_on(tmp_path / "c")
    path = tmp_path / "c" / "manifest.json"
    manifest = orjson.loads(path.read_bytes())
    for arm in manifest["arms"]:
        arm["options"] = {"effective": {"streams_ahead": arm["name"] == "on"}}
    path.write_bytes(orjson.dumps(manifest))
    assert "copies ahead" not in said(open_page(monkeypatch, tmp_path, "layers", capture="c", arm="off"))
    assert "on copies ahead" in said(open_page(monkeypatch, tmp_path, "layers", capture="c", arm="on"))


def test_what_makes_figures_worth_nothing_is_told_above_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Here two arms that are one file."""
    import_files([TraceInput(KINETO, "off"), TraceInput(KINETO, "on")], tmp_path / "one")
    told = f"off and on were read from {KINETO.name}: one trace beside itself, whose ratio judges nothing."
    for page in ("overview", "timeline"):
        app = open_page(monkeypatch, tmp_path, page, capture="one")
        assert told in [warning.value.replace("\\", "") for warning in app.warning]
