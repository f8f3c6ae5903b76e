"""The Chrome JSON holds every row, exact to the nanosecond, with A and B aligned at zero."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from profiler.capture import Capture
from profiler.export.chrome import write_chrome
from profiler.export.tracks import chosen_passes
from profiler.storage.writer import new_capture
from tests.profiler.makers import dense_off_on, empty, imported_without_passes

Event = dict[str, Any]


def _exported(*captures: Capture, passes: str | None = None) -> list[Event]:
    out = io.BytesIO()
    write_chrome([(capture, chosen_passes(capture, passes)) for capture in captures], out)
    events: list[Event] = json.loads(out.getvalue())["traceEvents"]
    return events


def _slices(events: list[Event], process: int) -> list[Event]:
    return [e for e in events if e["ph"] == "X" and e["pid"] == process and e["cat"] != "ubatch"]


def _names(events: list[Event], kind: str) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == kind}


def _capture_of(path: Path, columns: dict[str, Any]) -> Capture:
    writer = new_capture(path, source="nsys")
    writer.write_part("events", columns, "trace")
    writer.finish()
    return Capture.open(path)


def test_arms_are_processes_that_start_at_zero(tmp_path: Path) -> None:
    events = _exported(dense_off_on(tmp_path / "c"))
    titles = _names(events, "process_name")
    assert titles[1, 0].startswith("off · pass 6 (ubatch 4, depth 0, prompt 8, gen 2, repetition 2)")
    assert titles[2, 0].startswith("on · pass 7")
    for process in (1, 2):
        assert min(e["ts"] for e in _slices(events, process)) == 0
        assert len(_slices(events, process)) == 12


def test_a_slice_says_what_the_row_says(tmp_path: Path) -> None:
    events = _exported(dense_off_on(tmp_path / "c"))
    copy = next(e for e in _slices(events, 2) if e["cat"] == "h2d" and e["args"]["layer"] == 1)
    assert (copy["name"], copy["ts"], copy["dur"]) == ("ffn", 100, 100)
    assert copy["args"] == {
        "kind": "h2d", "phase": "prefill", "tensor": "ffn", "stream": "copy", "ubatch": 0, "layer": 1,
        "bytes": 8000, "whole_bytes": 8000, "correlation_id": 1, "gb_s": 0.08,
    }  # fmt: skip


def test_arrows_lead_from_each_copy_to_the_work_that_waited(tmp_path: Path) -> None:
    events = _exported(dense_off_on(tmp_path / "c"))
    starts, ends = ({e["id"]: e for e in events if e["ph"] == phase} for phase in "sf")
    assert len(starts) == 12
    assert starts.keys() == ends.keys()
    slices = {(e["pid"], e["tid"], e["ts"]): e for e in events if e["ph"] == "X"}
    for number, start in starts.items():
        end = ends[number]
        consumer = slices[end["pid"], end["tid"], end["ts"]]
        copies = [
            e
            for e in _slices(events, start["pid"])
            if e["tid"] == start["tid"] and e["ts"] <= start["ts"] < e["ts"] + e["dur"]
        ]
        assert [c["cat"] for c in copies] == ["h2d"]
        assert (copies[0]["args"]["ubatch"], copies[0]["args"]["layer"]) == (
            consumer["args"]["ubatch"],
            consumer["args"]["layer"],
        )


def test_counters_show_the_rate_of_copies_and_the_memory(tmp_path: Path) -> None:
    events = _exported(dense_off_on(tmp_path / "c"))
    rates = [
        (e["ts"], e["args"]["GB/s"]) for e in events if e["ph"] == "C" and e["pid"] == 2 and e["name"].startswith("H2D")
    ]
    # `on` copies back to back: the rate stays until the last copy ends
    assert {rate for _, rate in rates[:-1]} == {0.08}
    assert rates[-1] == (600, 0)
    memory = [e["args"] for e in events if e["ph"] == "C" and e["pid"] == 2 and e["name"].startswith("VRAM")]
    assert memory == [{"resident": 30_000, "slots": 16_000, "other": 4_000}] * 2


def test_rates_of_copies_that_overlap_add_up(tmp_path: Path) -> None:
    columns = {"kind": ["h2d"] * 2, "device": [0] * 2, "stream": ["1", "2"], "t_start": [0, 50], "t_end": [100, 150]}
    events = _exported(_capture_of(tmp_path / "c", columns | {"bytes": [1000, 500]}))
    assert [(e["ts"], e["args"]["GB/s"]) for e in events if e["ph"] == "C"] == [
        (0, 10),
        (0.05, 15),
        (0.1, 5),
        (0.15, 0),
    ]


def test_ubatches_are_slices_above_the_lanes(tmp_path: Path) -> None:
    events = _exported(dense_off_on(tmp_path / "c"))
    spans = [(e["name"], e["ts"]) for e in events if e["ph"] == "X" and e["cat"] == "ubatch" and e["pid"] == 1]
    assert spans == [("prefill 0 · 4 tokens", 0), ("prefill 1 · 4 tokens", 320), ("decode 2 · 1 tokens", 640)]


def test_overlapping_slices_of_one_stream_go_to_sub_lanes(tmp_path: Path) -> None:
    n = 5
    columns = {
        "kind": ["compute"] * n, "device": [0] * n, "stream": ["7"] * n,
        "t_start": [i * 10 for i in range(n)], "t_end": [i * 10 + 15 for i in range(n)],
    }  # fmt: skip
    events = _exported(_capture_of(tmp_path / "c", columns))
    assert Counter(e["tid"] for e in _slices(events, 1)) == {2: 3, 3: 2}
    assert _names(events, "thread_name")[1, 3] == "compute (2)"


def test_times_are_exact_to_the_nanosecond_far_from_zero(tmp_path: Path) -> None:
    start = 4_503_599_627_370_497
    columns = {"kind": ["compute"] * 2, "device": [0] * 2, "t_start": [0, start], "t_end": [1, start + 3]}
    out = io.BytesIO()
    write_chrome([(_capture_of(tmp_path / "c", columns), None)], out)
    assert b'"ts":4503599627370.497,"dur":0.003' in out.getvalue()


def test_names_with_markup_and_quotes_stay_text(tmp_path: Path) -> None:
    name = '</script><script>alert("1")</script>\\ \x07 ' + "é" * 3
    columns = {"kind": ["compute"], "name": [name], "device": [0], "t_start": [0], "t_end": [1]}
    out = io.BytesIO()
    write_chrome([(_capture_of(tmp_path / "c", columns), None)], out)
    assert b"<" not in out.getvalue()
    events = json.loads(out.getvalue())["traceEvents"]
    assert _slices(events, 1)[0]["name"] == name


def test_rows_before_the_pass_begins_move_all_processes_together(tmp_path: Path) -> None:
    writer = new_capture(tmp_path / "c", source="nsys")
    passes = {"pass_id": [0, 1], "arm": ["off", "on"], "t_start": [1000, 5000], "t_end": [2000, 6000]}
    writer.write_part("passes", passes, "p")
    rows = {
        "pass_id": [0, 1],
        "kind": ["compute", "h2d"],
        "device": [0, 0],
        "t_start": [1000, 4400],
        "t_end": [1500, 5100],
    }
    writer.write_part("events", rows, "e")
    writer.finish()
    events = _exported(Capture.open(tmp_path / "c"))
    assert [(e["pid"], e["ts"]) for e in events if e["ph"] == "X"] == [(1, 0.6), (2, 0)]


def test_several_captures_stand_side_by_side(tmp_path: Path) -> None:
    a, b = dense_off_on(tmp_path / "a"), imported_without_passes(tmp_path / "b")
    titles = _names(_exported(a, b), "process_name")
    assert [title.split(" · ")[0] for title in titles.values()] == ["a", "a", "b"]


def test_a_capture_without_rows_is_a_valid_trace(tmp_path: Path) -> None:
    assert _slices(_exported(empty(tmp_path / "c")), 1) == []


def test_rows_of_which_nothing_but_the_times_is_known_are_there(tmp_path: Path) -> None:
    capture = _capture_of(tmp_path / "c", {"t_start": [0, 100, 200], "t_end": [50, 150, 250], "bytes": [None, 7, None]})
    slices = _slices(_exported(capture), 1)
    assert [(one["ts"], one["cat"], one["name"]) for one in slices] == [
        (0.0, "unknown", "unknown"), (0.1, "unknown", "unknown"), (0.2, "unknown", "unknown"),
    ]  # fmt: skip
    assert [one["args"] for one in slices] == [{}, {"bytes": 7, "gb_s": 0.14}, {}]


def test_every_row_of_every_pass_is_there(tmp_path: Path) -> None:
    capture = dense_off_on(tmp_path / "c")
    events = _exported(capture, passes="all")
    assert sum(e["ph"] == "X" and e["cat"] != "ubatch" for e in events) == capture.table("events").num_rows
    assert isinstance(capture.table("events"), pa.Table)
