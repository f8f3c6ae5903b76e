"""Equal names have equal values on every surface: what the pages show is what `hprof report --json` says, or the
command that a page is of.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Final

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from dashboard.text import about_layers
from executor.units import format_share
from profiler.arithmetic.stats import Comparison
from profiler.predicting.what_if import WHAT_IF_UBATCHES
from profiler.report.verdicts import verdict_word
from tests.dashboard.figures_of_pages import (
    RUNS,
    Measured,
    amounts,
    as_json,
    cell_name,
    cell_of,
    chart,
    measure,
    median,
    page_of,
    same,
    table,
    tells,
)
from tests.dashboard.pages import said

of_experts = pytest.mark.parametrize("measured", ["moe"], indirect=True)


@pytest.fixture(scope="module", params=list(RUNS))
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return measure(request.param, tmp_path_factory.mktemp("captures"))


def test_bytes_moved_are_the_reports(measured: Measured) -> None:
    cell = measured.report["cells"][-1]
    a, b = measured.arms[0], measured.arms[-1]
    with page_of(measured.path, "selective", b=b, cell=cell_name(cell)) as app:
        shown, bars = table(app, "ubatch", "copied", "whole copies", "saved"), chart(app, "bytes")
        for arm in (a, b):
            moved, saved = (median(cell["arms"][arm], name) for name in ("bytes_h2d", "selective_saving_bytes"))
            tells(app, f"**{arm}** moved", [moved, saved or None])
            rows = measured.figures("ubatch", arm, cell["n_ubatch"])
            rows["whole"] = rows["bytes_h2d"] + rows["selective_saving_bytes"].fillna(0)
            assert rows.groupby("pass_id")["bytes_h2d"].sum().median() == moved, "ubatches hold all copies"
            mine, known = shown[shown["arm"] == arm], rows.groupby("ubatch")
            same(mine["copied"], known["bytes_h2d"].median())
            same(mine["saved"], known["selective_saving_bytes"].median())
            same(mine["whole copies"], known["whole"].median())
            is_drawn = mine["ubatch"].isin(bars.drawn(f"{arm} moved", "x"))
            same(bars.drawn(f"{arm} moved"), mine["copied"][is_drawn])


@of_experts
def test_experts_touched_are_those_of_the_measured_passes(measured: Measured) -> None:
    opened = measured.opened
    rows = opened.frame("experts", pass_ids=opened.passes["pass_id"].tolist())
    of_ubatch = rows.groupby(["n_tokens", "phase", "pass_id", "ubatch"], observed=True)[["distinct", "n_experts"]].sum()
    known = (of_ubatch["distinct"] / of_ubatch["n_experts"]).groupby(["n_tokens", "phase"], observed=True)
    with page_of(measured.path, "selective") as app:
        shown, points = table(app, "n_tokens", "distinct share"), chart(app, "distinct")
        shown = shown.sort_values(["n_tokens", "phase"])
        for column, values in {
            "distinct share": known.median(),
            "distinct least": known.min(),
            "distinct most": known.max(),
        }.items():
            same(shown[column], values.sort_index(key=lambda level: level.astype(object)))
        for phase, mine in shown.groupby("phase"):
            same(points.drawn(f"measured in {phase}", "x"), mine["n_tokens"])
            same(points.drawn(f"measured in {phase}"), mine["distinct share"])
            low, high = points.whiskers(f"measured in {phase}")
            same(low, mine["distinct least"])
            same(high, mine["distinct most"])


@of_experts
def test_adjacent_layers_and_hottest_experts_are_one_value_in_chart_and_table(measured: Measured) -> None:
    with page_of(measured.path, "selective") as app:
        shown, bars = table(app, "phase", "layer", "median overlap"), chart(app, "overlap")
        assert set(shown["phase"]) == {"prefill", "decode"}
        for phase, mine in shown.groupby("phase"):
            same(bars.drawn(f"in {phase}", "x"), mine["layer"])
            same(bars.drawn(f"in {phase}"), mine["median overlap"])
            low, high = bars.whiskers(f"in {phase}")
            same(low, mine["low"])
            same(high, mine["high"])
        hottest, line = table(app, "experts", "median"), chart(app, "coverage")
        same(line.drawn("the median layer"), hottest["median"])
        enough = int(hottest["experts"][hottest["median"] >= 0.8].iloc[0])
        assert f"The **{enough} hottest of {len(hottest)} experts** serve 80.0 %" in said(app)


def test_memory_is_the_reports(measured: Measured) -> None:
    cell, placed = measured.report["cells"][0], {one["name"]: one["memory"] for one in measured.report["arms"]}
    a, b = measured.arms[0], measured.arms[-1]
    with page_of(measured.path, "memory", b=b, cell=cell_name(cell)) as app:
        parts, bars = table(app, "arm", "weights that stay", "peak").set_index("arm"), chart(app, "parts")
        peaks = {arm: median(cell["arms"][arm], "vram_peak_bytes") or 0 for arm in (a, b)}
        same(parts["peak"], peaks.values())
        for title, name in PARTS.items():
            same(parts[title], [placed[arm][name] for arm in (a, b)])
        named = {arm: sum(placed[arm][name] for name in PARTS.values()) for arm in (a, b)}
        same(parts[REST], [peaks[arm] - named[arm] for arm in (a, b)])
        for title in (one for one in (*PARTS, REST) if parts[one].any()):
            same(bars.drawn(title, "x"), parts[title])
        for arm in (a, b):
            reserved = placed[arm]["slots_bytes"] + placed[arm]["bank_bytes"]
            line = tells(app, f"{arm} reserves", [reserved or None])
            assert reserved == 0 or about_layers(placed[arm]["cost_in_layers"], "more ") in line
        shown = table(app, "arm", "resident", "in host memory").set_index("arm").loc[measured.arms]
        for title, name in RESIDENCY.items():
            same(shown[title], [placed[arm][name] for arm in measured.arms])


PARTS: Final = {
    "weights that stay": "resident_bytes",
    "slots for streamed weights": "slots_bytes",
    "expert cache's bank": "bank_bytes",
}
REST: Final = "activations, KV cache, the rest"
RESIDENCY: Final = {
    "resident": "resident_bytes",
    "in host memory": "host_bytes",
    "slots": "slots_bytes",
    "bank": "bank_bytes",
    "number of slots": "slots",
    "room of slots and bank, in layers": "cost_in_layers",
}


def test_slots_hold_what_was_copied_and_no_more_than_there_is_room(measured: Measured) -> None:
    """Over time, of one pass: the second repetition of arm `on`."""
    cell, opened = measured.report["cells"][-1], measured.opened
    passes = opened.passes.query("arm == 'on' and repetition == 1 and n_ubatch == @cell['n_ubatch']")
    events = opened.frame("events", pass_ids=passes["pass_id"].tolist())
    copied = events[events["slot"].notna() & (events["kind"] == "h2d")]
    (placed,) = (one["memory"] for one in measured.report["arms"] if one["name"] == "on")
    with page_of(measured.path, "memory", b="on", arm="on", rep="1", cell=cell_name(cell)) as app:
        fillings, steps = table(app, "slot", "bytes", "from"), table(app, "time", "held in slots")
        line = chart(app, "held").drawn("with what the slots hold")
        same([fillings["bytes"].sum()], [copied["bytes"].sum()])
        assert len(fillings) == len(copied.drop_duplicates(["ubatch", "layer"]))
        assert fillings["bytes"].max() <= placed["slots_bytes"] / placed["slots"] * 1.001, "a slot's room"
        most = steps["held in slots"].max() + placed["resident_bytes"] + placed["bank_bytes"]
        same([max(line)], [most])
        tells(app, "Weights that stay", [most, float(passes["vram_peak"].iloc[0])])
        assert most <= float(passes["vram_peak"].iloc[0])


def test_layers_are_medians_of_the_passes(measured: Measured) -> None:
    cell = measured.report["cells"][0]
    a, b = measured.arms[0], measured.arms[-1]
    for arm in (a, b):
        rows = measured.figures("layer", arm, cell["n_ubatch"]).query("phase == 'prefill'")
        ubatch = int(rows["ubatch"].max())
        address = {"b": b, "arm": arm, "cell": cell_name(cell), "ubatch": str(ubatch)}
        with page_of(measured.path, "layers", **address) as app:
            shown, bars = table(app, "layer", "C", "T"), chart(app, "layers")
            known = rows[rows["ubatch"] == ubatch].groupby("layer")
            same(shown["layer"], known.groups)
            for title, column in OF_LAYERS.items():
                same(shown[title], known[column].median())
            is_bound = (known["copy_ns"].median() > known["compute_ns"].median()).tolist()
            assert (shown["bound by"] == "copy").tolist() == is_bound
            assert f"**{sum(is_bound)} of {len(is_bound)} layers are copy-bound**" in said(app)
            for name, title in {"C: compute": "C", "T: hidden copy": "hidden", "T: exposed copy": "exposed"}.items():
                same(bars.drawn(name), shown[title])
            margins(app, rows)


OF_LAYERS: Final = {
    "C": "compute_ns",
    "T": "copy_ns",
    "hidden": "hidden_ns",
    "exposed": "exposed_ns",
    "waited": "wait_ns",
    "next layer's whole copy T'": "next_whole_copy_ns",
}


def margins(app: AppTest, rows: pd.DataFrame) -> None:
    """Where prefetch would pay, of the rows of a phase."""
    ahead = rows[rows["next_whole_copy_ns"] > 0]
    if ahead.empty:
        assert "the copies of two adjacent layers" in said(app)
        return
    over = ahead["compute_ns"] + ahead["copy_ns"] - ahead["next_whole_copy_ns"]
    known = over.groupby([ahead["layer"], ahead["ubatch"]]).median()
    shown = table(app, "ubatch", f"layer {known.index[0][0]}").set_index("ubatch")
    for layer, of_layer in known.groupby("layer"):
        same(shown[f"layer {layer}"].dropna(), of_layer)
    line = chart(app, "margin")
    same(line.drawn(""), known.groupby("layer").median())
    same(sorted([*line.drawn("prefetch pays"), *line.drawn("prefetch loses")]), sorted(line.drawn("")))
    assert f"It holds for **{format_share(float((known > 0).mean()))}**" in said(app)


def test_lanes_of_the_timeline_are_the_passes_figures(measured: Measured) -> None:
    """Of the second repetition of each arm."""
    cell, a = measured.report["cells"][-1], measured.arms[0]
    b = measured.arms[-1]
    with page_of(measured.path, "timeline", b=b, rep="1", cell=cell_name(cell)) as app:
        shown = table(app, "pass", "lane", "busy")
        for arm in (a, b):
            (row,) = measured.figures("pass", arm, cell["n_ubatch"]).query("repetition == 1").to_dict("records")
            lanes = shown[shown["pass"] == arm].set_index("lane")
            for lane, columns in OF_LANES.items():
                known = {title: row[name] for title, name in columns.items()}
                if lane in lanes.index:
                    same(lanes.loc[lane, list(known)], known.values())
                else:
                    assert not any(value > 0 for value in known.values()), lane
            if COPIES in lanes.index:
                same([lanes.loc[COPIES, "speed while busy"]], [row["bytes_h2d"] / row["busy_copy_ns"]])
        busy_ns, end_ns = chart(app, "busy").heat()
        assert busy_ns == pytest.approx(shown["busy"].tolist(), abs=0.005 * end_ns), "shares are whole percents"


COPIES: Final = "copy H2D"
OF_LANES: Final = {
    COPIES: {"busy": "busy_copy_ns", "exposed": "exposed_copy_ns", "bytes": "bytes_h2d"},
    "compute": {"busy": "busy_compute_ns"},
    "CPU compute": {"busy": "host_compute_ns"},
    "waits": {"busy": "wait_ns"},
}


@pytest.mark.parametrize("figure", ["prefill_tokens_per_s", "ttft_ns", "decode_tokens_per_s"])
def test_the_sweep_is_the_reports(measured: Measured, figure: str) -> None:
    cells, (a, b) = measured.report["cells"], measured.arms[:2]
    with page_of(measured.path, "sweep", figure=figure, b=b) as app:
        shown, lines = table(app, "arm", "ubatch", "median", "ratio"), chart(app, "lines")
        assert len(shown) == len(cells) * len(measured.arms)
        for arm in measured.arms:
            mine = shown[shown["arm"] == arm].sort_values("ubatch")
            told = [cell["arms"][arm][figure] for cell in cells]
            for name in ("median", "low", "high"):
                same(mine[name], [one[name] for one in told])
            same(mine["max(C, T) limit"], [limit(cell, arm, figure) for cell in cells])
            same(lines.drawn(arm), mine["median"])
            if arm in (a, b) and mine["max(C, T) limit"].notna().any():
                same(lines.drawn(f"limit of {arm}: max(C, T)"), mine["max(C, T) limit"])
            for edges, name in zip(lines.whiskers(arm), ("low", "high"), strict=True):
                same(edges, mine[name])
            against = [cell["against_baseline"].get(arm, {}).get(figure) or {} for cell in cells]
            same(mine["ratio"], [one.get("ratio") for one in against])
            assert mine["verdict"].dropna().tolist() == [verdict_word(Comparison(**one)) for one in against if one]
        factors(app, cells, figure, b)


def limit(cell: dict[str, Any], arm: str, figure: str) -> float | None:
    """If all that can be hidden were: the longer of copying and computing of the prompt."""
    busy = [median(cell["arms"][arm], name, "prefill") for name in ("busy_copy_ns", "busy_compute_ns")]
    if None in busy or figure == "decode_tokens_per_s":
        return None
    longest = max(one for one in busy if one is not None)
    return longest if figure == "ttft_ns" else cell["n_prompt"] / longest * 1e9


def factors(app: AppTest, cells: Sequence[dict[str, Any]], figure: str, b: str) -> None:
    """How many times as fast B is, in the grid and over the sizes."""
    against = [cell["against_baseline"][b][figure] for cell in cells]
    turned = [{name: one[name] for name in ("ratio", "low", "high")} for one in against]
    if figure == "ttft_ns":
        times = [{"ratio": "ratio", "low": "high", "high": "low"}] * len(cells)
        turned = [
            {name: one[other] and 1 / one[other] for name, other in names.items()}
            for one, names in zip(turned, times, strict=True)
        ]
    (places,) = table(app, "depth", f"ubatch {cells[0]['n_ubatch']}").to_dict("records")
    same([places[f"ubatch {cell['n_ubatch']}"] for cell in cells], [one["ratio"] for one in turned])
    if len(cells) < 2:
        return
    shown, lines = table(app, "arm", "times as fast"), chart(app, "ratios")
    mine = shown[shown["arm"] == b].sort_values("ubatch")
    for title, name in {"times as fast": "ratio", "low": "low", "high": "high"}.items():
        same(mine[title], [one[name] for one in turned])
    same(lines.drawn(b), mine["times as fast"])
    if mine["low"].notna().all():
        same(lines.drawn(f"interval of {b}"), [*mine["high"], *mine["low"][::-1]])


SPEEDS: Final = {"ttft_ns": "Time to first token", "prefill_tokens_per_s": "Prefill", "decode_tokens_per_s": "Decode"}


def test_what_if_is_what_predict_says_beside_the_report(measured: Measured) -> None:
    cell, path = measured.report["cells"][0], str(measured.path)
    n_prompt, n_gen, here = cell["n_prompt"], cell["n_gen"], cell["n_ubatch"]
    sizes = sorted({size for size in WHAT_IF_UBATCHES if size < n_prompt} | {n_prompt, here})
    asked = ["predict", "--fit", path, "-p", str(n_prompt), "-n", str(n_gen), "-ub", ",".join(map(str, sizes))]
    known = as_json(*asked)
    with page_of(measured.path, "what_if", cell=cell_name(cell)) as app:
        for figure, label in SPEEDS.items():
            app.segmented_control[0].select(label).run()
            predicted(app, known, figure, sizes)
            at = table(app, "arm", "predicted", "measured").set_index("arm")
            for arm, told in cell_of(known, n_ubatch=here)["arms"].items():
                by_report = cell["arms"][arm][figure]["median"]
                same(at.loc[arm, ["predicted", "measured"]], [told[figure]["median"], by_report])
                same(at.loc[arm, ["low", "high"]], [told[figure]["low"], told[figure]["high"]])
                assert at.loc[arm, "off by"] == pytest.approx(told[figure]["median"] / by_report - 1, abs=6e-4)


@of_experts
def test_what_if_of_another_link_is_what_predict_says(measured: Measured) -> None:
    cell = measured.report["cells"][0]
    sizes = [32, 64, cell["n_prompt"]]
    asked = ["predict", "--fit", str(measured.path), "-n", str(cell["n_gen"]), "-ub", ",".join(map(str, sizes))]
    with page_of(measured.path, "what_if", cell=cell_name(cell)) as app:
        app.number_input(key="link").set_value(12.0).run()
        predicted(app, as_json(*asked, "--link-gb-s", "12"), "ttft_ns", sizes)


def predicted(app: AppTest, known: dict[str, Any], figure: str, sizes: Sequence[int]) -> None:
    shown = table(app, "arm", "n_ubatch", "in_range")
    for arm in known["cells"][0]["arms"]:
        mine = shown[shown["arm"] == arm].sort_values("n_ubatch")
        told = [cell_of(known, n_ubatch=size)["arms"][arm] for size in sizes]
        same(mine["n_ubatch"], sizes)
        for name in ("median", "low", "high"):
            same(mine[name], [one[figure][name] for one in told])
        assert mine["in_range"].tolist() == [one["in_fitted_range"] for one in told]
        same(chart(app, "what-if").drawn(arm), mine["median"])


def test_advice_is_the_commands(measured: Measured) -> None:
    with page_of(measured.path, "advise") as app:
        words = shlex.split(next(block.value for block in app.code if "hprof advise" in block.value))[1:]
        known = as_json(*[str(measured.path) if word == measured.path.name else word for word in words])
        shown, points = table(app, "arm", "-ub", "TTFT"), chart(app, "pareto")
        front, best = known["pareto"], known["best"][0]
        for title, name in OF_ADVICE.items():
            same(shown[title], [one[name] for one in front])
        for title, name in {"arm": "arm", "bound by": "bound_by", "-ot": "override_tensor"}.items():
            assert shown[title].tolist() == [one[name] for one in front]
        assert shown["host layers"].tolist() == [len(one["host_layers"]) for one in front]
        for arm, mine in shown.groupby("arm"):
            same(points.drawn(str(arm), "x"), mine["TTFT"])
            same(points.drawn(str(arm)), mine["decode"])
        gives = next(line for line in said(app).splitlines() if line.startswith("**Gives:**"))
        told = amounts(gives)
        assert [told[0], *told[-2:]] == pytest.approx(
            [best["ttft_ns_predicted"], best["vram_bytes"], best["reserve_bytes"]], rel=6e-3
        )


OF_ADVICE: Final = {
    "-ub": "n_ubatch",
    "TTFT": "ttft_ns_predicted",
    "prefill": "prefill_tokens_per_s",
    "decode": "decode_tokens_per_s",
    "memory": "vram_bytes",
    "slots": "slots",
    "cache": "moe_cache_mib",
}
