"""`import hprof` as README, docs/python.md and docs/metrics.md promise it: frames, pictures, and errors that name what
there is.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import hprof
from executor.errors import HprofError
from hprof.opened import OpenedCapture
from profiler.manifest import ManifestArm
from profiler.storage.writer import PassKey, new_capture
from tests.dashboard.test_hostile import hostile
from tests.profiler import makers
from tests.profiler.cli.test_hostile import EVIL


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> OpenedCapture:
    return hprof.open(makers.dense_off_on(tmp_path_factory.mktemp("traces") / "dense", n_pairs=2).path)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> OpenedCapture:
    folder = tmp_path_factory.mktemp("run") / "swept"
    sizes = {"n_ubatch": [64, 128], "n_prompt": 128, "n_gen": 1, "repetitions": 2}
    return hprof.run("tiny-dense", folder, arms=["off", "on", "full"], device="sim", **sizes)  # type: ignore[arg-type]


def test_open_by_the_public_name(dense: OpenedCapture) -> None:
    assert dense.name == "dense"
    assert dense.arms == ["off", "on"]
    assert dense.warnings == []
    assert dense.report().baseline == "off"


def test_warmups_are_left_out_unless_they_are_asked_for(dense: OpenedCapture) -> None:
    assert dense.passes["arm"].tolist() == ["off", "on", "on", "off"]
    assert len(dense.frame("passes")) == 6
    assert [len(dense.figures(warmups=asked)) for asked in (False, True)] == [4, 6]


def test_metrics_come_as_frames(dense: OpenedCapture) -> None:
    assert dense.figures(arm="on")["hidden_copy_ns"].tolist() == [300_000.0] * 2
    assert dense.figures("decode", warmups=True)["overlap_efficiency"].tolist() == [0, 1, 0, 1, 1, 0]
    assert len(dense.figures("ubatch")) == 4 * 3
    assert dense.figures("layer")["compute_ns"].unique().tolist() == [60_000]


def test_whole_numbers_stay_whole_beside_nulls(dense: OpenedCapture) -> None:
    slots = dense.frame("events")["correlation_id"]
    layers = dense.frame("events", ["layer", "tensor", "slot"])["layer"]
    assert str(slots.dtype) == "Int64"
    assert str(layers.iloc[0]) == "0"


def test_a_notebook_shows_the_answer_and_no_markup_of_the_capture(tmp_path: Path) -> None:
    capture = hprof.open(makers.dense_off_on(tmp_path / "<b>evil</b>").path)
    assert "Arms: off, on." in repr(capture)
    assert "12 measured passes in 1 cell, 2 warm-ups beside them." in repr(capture)
    for shown in (capture, capture.report(), hprof.compare(f"{capture.path}#off", f"{capture.path}#on")):
        html = shown._repr_html_()
        assert "faster" in html
        assert "<b>evil" not in html


def test_no_text_of_a_capture_steers_the_terminal_of_a_prompt(tmp_path: Path) -> None:
    hostile(tmp_path / "c", EVIL)
    capture = hprof.open(tmp_path / "c")
    with pytest.raises(HprofError) as raised:
        capture.crossover("nope")
    compared = hprof.compare(f"{capture.path}#{EVIL}", f"{capture.path}#{EVIL}2")
    for told in (repr(capture), repr(capture.report()), repr(compared), str(raised.value)):
        assert "skull" in told
        assert all(line.isprintable() for line in told.split("\n"))


def test_a_capture_that_goes_still_has_a_repr(tmp_path: Path) -> None:
    capture = hprof.open(makers.dense_off_on(tmp_path / "c").path)
    shutil.rmtree(tmp_path / "c")
    assert "cannot be read" in repr(capture)
    assert capture._repr_html_() == ""


def test_a_run_from_python_is_the_commands(swept: OpenedCapture) -> None:
    assert swept.manifest.argv[:2] == ["hprof", "run"]
    assert "-ub" in swept.manifest.argv
    assert len(swept.passes) == 3 * 2 * 2


def test_a_report_is_a_tidy_frame(swept: OpenedCapture) -> None:
    frame = swept.report().to_frame()
    told = frame[(frame["arm"] == "on") & (frame["figure"] == "ttft_ns") & (frame["phase"] == "pass")]
    assert told["n_ubatch"].tolist() == [64, 128]
    assert (told["ratio"] < 1).all()
    assert told["verdict"].tolist() == ["faster", "faster"]
    assert frame[frame["arm"] == "off"]["ratio"].isna().all()


@pytest.mark.parametrize(("picture", "drawn"), [("factors", "on"), ("sweep", "on"), ("time", "compute")])
def test_pictures_are_the_dashboards(swept: OpenedCapture, picture: str, drawn: str) -> None:
    figure = swept.plot(picture)  # type: ignore[arg-type]
    assert any(drawn in str(trace.name) for trace in figure.data)


def test_layers_of_an_arm_are_drawn(swept: OpenedCapture) -> None:
    assert len(swept.plot("layers", arm="on").data) > 1


def test_layers_are_those_of_one_cell(swept: OpenedCapture) -> None:
    drawn = swept.plot("layers", arm="on")
    assert drawn.layout.title.text == "SIMULATED: swept, ub=128, arm on"
    passes = swept.passes
    of_the_cell = passes[(passes["n_ubatch"] == 128) & (passes["arm"] == "on")]["pass_id"]
    rows = swept.figures("layer", arm="on")
    rows = rows[rows["pass_id"].isin(of_the_cell) & (rows["ubatch"] == 0)]
    [compute] = [trace for trace in drawn.data if str(trace.name).startswith("C: compute")]
    assert list(compute.y) == pytest.approx(list(rows.groupby("layer")["compute_ns"].median() / 1e6))


def test_a_picture_says_of_what_it_is(swept: OpenedCapture, dense: OpenedCapture) -> None:
    assert swept.plot("factors").layout.title.text == "SIMULATED: swept"
    assert swept.plot("time").layout.title.text == "SIMULATED: swept, ub=128"
    assert dense.plot("sweep").layout.title.text == "dense"


def test_arms_without_sizes_are_drawn_side_by_side(tmp_path: Path) -> None:
    """Callables and commands have no ubatch to stand over."""
    writer = new_capture(tmp_path / "ab", source="python", arms=[ManifestArm("off"), ManifestArm("on")])
    for order in range(12):
        arm, repetition = ("off", "on")[order % 2], order // 2
        took = 2_000_000 if arm == "off" else 1_000_000
        key = PassKey(arm, repetition=repetition, order=order, boot=0)
        writer.add_pass_row(order, key, t_start=0, t_end=took + repetition)
    writer.finish()
    capture = hprof.open(tmp_path / "ab")
    [on] = capture.plot("factors").data
    assert list(on.x) == ["on"]
    assert on.y[0] == pytest.approx(2.0, rel=1e-3)
    drawn = {str(trace.x[0]): float(trace.y[0]) for trace in capture.plot("sweep").data}
    assert drawn == pytest.approx({"off": 2.0, "on": 1.0}, rel=1e-3)


def test_arms_may_be_one_string(tmp_path: Path) -> None:
    capture = hprof.run("tiny-dense", tmp_path / "c", arms="off,full", device="sim", n_prompt=32, n_ubatch=32, n_gen=0)
    assert capture.arms == ["off", "full"]


def test_a_timeline_has_both_arms_lanes(swept: OpenedCapture) -> None:
    (drawn,) = swept.plot("timeline", arm="on").data
    assert {"A off", "B on"} == {label.split(" · ")[0] for label in drawn.y}
    copying = {label: row.max() for label, row in zip(drawn.y, drawn.z, strict=True) if "H2D" in label}
    assert len(copying) == 2
    assert min(copying.values()) > 0


def test_where_an_arm_crosses_the_baseline(swept: OpenedCapture) -> None:
    crossings = [found for found in swept.report().crossovers if found.arm == "on"]
    assert swept.crossover("on") == (crossings[0] if crossings else None)
    assert swept.crossover("on", n_depth=77) is None


def test_captures_are_compared_and_limits_answered(dense: OpenedCapture) -> None:
    path = dense.path
    found = hprof.compare(f"{path}#off", f"{path}#on", fail_on=["ttft>+5%"])
    frame = found.to_frame()
    assert frame.loc[frame["figure"] == "ttft_ns", "ratio"].tolist() == pytest.approx([462.5 / 642.5], rel=0.01)
    assert found.failed()  # two pairs decide nothing
    assert not found.failed(allow_inconclusive=True)
    assert "B against A" in repr(found)
    alone = hprof.compare(f"{path}#off", f"{path}#on", fail_on="ttft>+5%")
    assert [gate.expression for gate in alone.result.gates] == ["ttft>+5%"], "one limit needs no list"
    assert hprof.compare(dense, dense).to_frame()["a"].notna().all()


def test_captures_are_listed_as_a_frame(dense: OpenedCapture, tmp_path: Path) -> None:
    found = hprof.list(Path(dense.path).parent)
    assert found[["name", "state"]].to_numpy().tolist() == [["dense", "complete"]]
    assert list(hprof.list(tmp_path).columns) == list(found.columns)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda c: c.figures("nope"), "the levels are pass, prefill, decode, ubatch and layer"),
        (lambda c: c.figures("lay"), "did you mean layer"),
        (lambda c: c.figures(arm="x"), "its arms are off and on"),
        (lambda c: c.crossover("onn"), "did you mean on"),
        (lambda c: c.plot("pie"), "the pictures are factors, sweep, time, layers and timeline"),
        (lambda c: c.plot(None), r"plot\(None\): there is no such picture"),
        (lambda c: c.plot("sweep", figure="ttfft"), "is not one that can be plotted here: prefill_tokens_per_s"),
        (lambda c: c.frame("evnts"), "the tables are events"),
        (lambda c: hprof.run("tiny-dens"), "did you mean tiny-dense"),
        (lambda c: hprof.run(options=["--frob"]), "No such option '--frob'"),
        (lambda c: hprof.run(path=c.path, device="sim"), "in Python force=True"),
        (lambda c: hprof.list("nowhere"), "nowhere does not exist"),
    ],
)
def test_errors_name_what_there_is(dense: OpenedCapture, ask: Callable[[OpenedCapture], object], said: str) -> None:
    with pytest.raises(HprofError, match=said):
        ask(dense)
