"""One capture through every surface: what has one name has one value, and one spelling.

Python API, report (JSON, terminal's and HTML's tables), findings, CSV export, dashboard (cards, table of figures, where
the time went, timeline's lanes). All passes of an arm are alike, so that every median is the value of each pass.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

import hprof
from executor.units import format_ns, format_value
from profiler.capture import Capture
from profiler.compare import compare_captures
from profiler.export import export
from profiler.findings import find
from profiler.manifest import ManifestArm
from profiler.metrics import FIGURES
from profiler.metrics.timeline import lane_figures, load_timeline
from profiler.report.blocks import ON_A_PAGE, cell_blocks, device_table
from profiler.report.build import build_report
from profiler.report.cells import Cell
from profiler.storage.writer import PassKey, new_capture
from tests.dashboard.pages import open_page
from tests.profiler.makers import dense_off_on

MS = 10**6
N_PAIRS = 6
UNITS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9, "B": 1, "KiB": 2**10, "MiB": 2**20, "%": 0.01, "t/s": 1}
# arm -> when the copy runs, when the kernel, when the host computes, ms: 40 ms a pass, the rest is idle
STEPS = {"off": ((2, 12), (12, 27), (30, 36)), "on": ((2, 12), (7, 22), (25, 31))}
EXPECTED = {
    "off": {"busy_copy_ns": 10, "busy_compute_ns": 15, "hidden_copy_ns": 0, "exposed_copy_ns": 10, "idle_ns": 14},
    "on": {"busy_copy_ns": 10, "busy_compute_ns": 15, "hidden_copy_ns": 5, "exposed_copy_ns": 5, "idle_ns": 19},
}


@pytest.fixture(scope="module", params=["hprof", "nsys"])
def capture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """Two arms, six repetitions; in a collective for 1 ms of each pass. Passes of hprof's captures all begin at 0."""
    path = tmp_path_factory.mktemp("traces") / "c"
    writer = new_capture(path, source=request.param, arms=[ManifestArm("off"), ManifestArm("on")])
    for number in range(2 * N_PAIRS):
        arm, repetition = ("off", "on")[number % 2], number // 2
        start = 0 if request.param == "hprof" else number * 100 * MS
        writer.write_part("events", _events(number, arm, start), f"pass-{number:06d}")
        key = PassKey(arm, 64, 0, 64, 1, repetition, number, 0)
        writer.add_pass_row(number, key, t_start=start, t_end=start + 40 * MS, ttft_ns=40 * MS, prefill_ns=40 * MS)
    writer.finish()
    return Capture.open(path)


def _events(number: int, arm: str, start: int) -> dict[str, Any]:
    times = [*STEPS[arm], (39, 40)]
    return {
        "pass_id": [number] * 4,
        "phase": ["prefill"] * 4,
        "process": [7] * 4,
        "device": [0] * 4,
        "stream": ["copy", "compute", "host", "nccl"],
        "kind": ["h2d", "compute", "cpu_compute", "compute"],
        "detail": [None, None, None, "collective"],
        "t_start": [start + first * MS for first, _ in times],
        "t_end": [start + last * MS for _, last in times],
        "bytes": [250_000_000, None, None, None],
    }


@pytest.fixture(scope="module")
def figures(capture: Capture) -> dict[str, dict[str, float]]:
    """The figures of the Python API: arm -> name -> value, of those that there are."""
    frame = hprof.open(capture.path).figures()
    told = {arm: rows[list(FIGURES)].drop_duplicates() for arm, rows in frame.groupby("arm")}
    assert all(len(rows) == 1 for rows in told.values())
    return {str(arm): {str(k): float(v) for k, v in rows.iloc[0].dropna().items()} for arm, rows in told.items()}


def test_the_figures_are_those_of_the_pencil(figures: dict[str, dict[str, float]]) -> None:
    for arm, expected in EXPECTED.items():
        assert {name: figures[arm][name] / MS for name in expected} == expected
        assert figures[arm]["collective_ns"] == MS
        assert figures[arm]["host_compute_ns"] == 6 * MS


def test_report_json(capture: Capture, figures: dict[str, dict[str, float]]) -> None:
    (cell,) = build_report(capture).to_json()["cells"]
    for arm, known in figures.items():
        medians = {name: cell["arms"][arm][name]["median"] for name in FIGURES if cell["arms"][arm][name]}
        assert medians == pytest.approx(known)
        assert cell["arms"][arm]["hidden_ratio_of_all_passes"] == pytest.approx(known["hidden_ratio"])


def test_tables_of_the_report(capture: Capture, figures: dict[str, dict[str, float]]) -> None:
    """The same blocks are drawn in the terminal, in Markdown and in HTML."""
    rows = _figure_rows(build_report(capture).cells[0])
    for name, figure in FIGURES.items():
        label = f"{figure.label} t/s" if figure.unit == "tokens/s" else figure.label
        assert rows.get(label, []) == [
            format_value(figures[arm][name], figure.unit) for arm in figures if label in rows
        ]
    assert {"hidden copy", "idle", "collectives", "host compute"} <= rows.keys()


def _figure_rows(cell: Cell) -> dict[str, list[str]]:
    table = next(
        block for block in cell_blocks(cell, ON_A_PAGE) if getattr(block, "columns", None) == ["", "off", "on"]
    )
    return {row[0]: row[1:] for row in getattr(table, "rows", [])}


def test_figures_of_the_device_are_those_of_all_passes(capture: Capture, figures: dict[str, dict[str, float]]) -> None:
    (device,) = build_report(capture).devices
    copies = device.copies["h2d"]
    for value, name in (
        (copies.busy_ns, "busy_copy_ns"),
        (copies.hidden_ns, "hidden_copy_ns"),
        (copies.exposed_ns, "exposed_copy_ns"),
        (device.compute_busy_ns, "busy_compute_ns"),
    ):
        assert value == N_PAIRS * sum(figures[arm][name] for arm in figures)
    (row,) = device_table(device).rows
    assert format_value(copies.exposed_ns, "ns") in row


def test_findings(capture: Capture, figures: dict[str, dict[str, float]]) -> None:
    found = {finding.rule: finding.evidence for finding in find(capture)}
    for known in figures.values():
        idle, window, host = (format_ns(known[name]) for name in ("idle_ns", "wall_ns", "host_compute_ns"))
        assert f"idle for {idle} of {window}" in found["device-idle"]
        assert f"{host} of it while the host computed" in found["device-idle"]


def test_csv_export(capture: Capture, figures: dict[str, dict[str, float]], tmp_path: Path) -> None:
    export([capture], "csv", tmp_path / "csv")
    with (tmp_path / "csv" / "figures.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["scope"] == "pass"]
    assert len(rows) == 2 * N_PAIRS
    for row in rows:
        assert {name: float(row[name]) for name in FIGURES if row[name]} == pytest.approx(figures[row["arm"]])


def test_dashboard(capture: Capture, figures: dict[str, dict[str, float]], monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(capture.path)
    app = open_page(monkeypatch, path.parent, "overview", capture=path.name)
    cards = {card.label: card.value for card in app.metric}
    assert cards["Exposed copy time"] == format_ns(figures["on"]["exposed_copy_ns"])
    tables = [table.value for table in app.dataframe]
    (of_figures,) = (table.set_index("figure") for table in tables if "figure" in table)
    for name, figure in FIGURES.items():
        if figure.label in of_figures.index:
            scale = UNITS[of_figures["unit"][figure.label]]
            told = [of_figures[column][figure.label] * scale for column in ("A off", "B on")]
            known = [figures[arm].get(name, math.nan) for arm in ("off", "on")]
            assert told == pytest.approx(known, rel=1e-3, nan_ok=True)  # the table has four digits
    (spent,) = (table.set_index("part") for table in tables if "part" in table)
    for part, name in (("idle", "idle_ns"), ("exposed copy", "exposed_copy_ns")):
        told = [spent[column][part] * UNITS[str(column).rpartition(", ")[2]] for column in spent]
        assert told == pytest.approx([figures[arm][name] for arm in ("off", "on")])


def test_lanes_of_the_timeline(capture: Capture, figures: dict[str, dict[str, float]]) -> None:
    for number, arm in enumerate(("off", "on")):
        lanes = lane_figures(load_timeline(capture, [number])).set_index("category")
        assert lanes.loc["h2d", "exposed_ns"] == figures[arm]["exposed_copy_ns"]
        assert lanes.loc["h2d", "busy_ns"] == figures[arm]["busy_copy_ns"]
        assert lanes.loc["h2d", "bytes"] == figures[arm]["bytes_h2d"]
        assert lanes.loc["cpu_compute", "busy_ns"] == figures[arm]["host_compute_ns"]


TIMES = ("ttft_ns", "prefill_tokens_per_s", "decode_tokens_per_s", "decode_token_ns", "wall_ns")


def _with_times(path: Path, *, untimed: bool) -> Capture:
    """Two arms with TTFT, prefill and decode, said to be timed or to be a recording beside timed runs."""
    dense_off_on(path)
    told = orjson.loads((path / "manifest.json").read_bytes())
    (path / "manifest.json").write_bytes(orjson.dumps(told | {"extra": {"untimed": untimed}}))
    return Capture.open(path)


def _told_times(capture: Capture, out: Path) -> dict[str, set[str]]:
    """Surface -> which of TIMES it gives a value."""
    opened = hprof.open(capture.path)
    found = {level: opened.figures(level) for level in ("pass", "prefill", "decode", "ubatch")}
    told = {
        level: {name for name in TIMES if name in frame and frame[name].notna().any()} for level, frame in found.items()
    }
    (cell,) = opened.report().to_json()["cells"]
    told["report"] = {name for arm in cell["arms"].values() for name in TIMES if arm.get(name)}
    export([capture], "csv", out / "csv")
    with (out / "csv" / "figures.csv").open() as file:
        told["csv"] = {name for row in csv.DictReader(file) for name in TIMES if row[name]}
    export([capture], "parquet", out / "parquet")
    table = pq.read_table(out / "parquet" / "figures.parquet")
    told["parquet"] = {name for name in TIMES if table[name].null_count < table.num_rows}
    changes = compare_captures(f"{capture.path}#off", f"{capture.path}#on").changes
    told["compare"] = {name for name in TIMES if any(change.figure == name for change in changes)}
    return told


def test_times_of_a_recording_beside_timed_runs_are_on_no_surface(tmp_path: Path) -> None:
    timed = _told_times(_with_times(tmp_path / "timed", untimed=False), tmp_path / "a")
    assert all(timed.values()), timed
    assert all(timed[surface] == set(TIMES) for surface in ("pass", "report", "csv", "parquet"))
    capture = _with_times(tmp_path / "beside", untimed=True)
    assert not any(_told_times(capture, tmp_path / "b").values())
    assert hprof.open(capture.path).figures(arm="on")["hidden_copy_ns"].tolist() == [300_000.0] * 6
    rows = pq.read_table(tmp_path / "b" / "parquet" / "passes.parquet")  # as recorded
    assert rows["ttft_ns"].to_pylist() == capture.table("passes")["ttft_ns"].to_pylist()


@pytest.mark.parametrize("untimed", [False, True])
def test_the_dashboard_gives_no_times_of_such_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untimed: bool
) -> None:
    _with_times(tmp_path / "c", untimed=untimed)
    app = open_page(monkeypatch, tmp_path, "overview", capture="c")
    (of_figures,) = (table.value.set_index("figure") for table in app.dataframe if "figure" in table.value)
    labels = {FIGURES[name].label for name in TIMES} & set(of_figures.dropna(subset=["A off"]).index)
    assert bool(labels) is not untimed, labels
    assert ("Time to first token" in {card.label for card in app.metric}) is not untimed
    assert "exposed copy" in of_figures.index
