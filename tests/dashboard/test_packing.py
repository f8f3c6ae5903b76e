"""The binary form of timelines: what goes in comes out, and big ones are cut to a window."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.timeline.columns import MAX_VARIABLE, VarintColumn, decode, encode, smallest_unsigned, with_header
from dashboard.timeline.component import checked_windows, script
from dashboard.timeline.pack import FULL_SHARE, MAX_LABEL_CHARS, PassToDraw, pack
from profiler.metrics.timeline import Timeline, load_timeline, timeline
from profiler.metrics.timeline_detail import ubatch_spans
from profiler.ordering.on_timeline import MarkedPair
from profiler.storage.writer import conform
from tests.profiler import makers


@given(st.lists(st.integers(0, MAX_VARIABLE)))
def test_variable_numbers_survive(values: list[int]) -> None:
    packed = VarintColumn.of(np.array(values, np.int64))
    assert packed.values().tolist() == values
    assert packed.length == len(values)


@given(st.lists(st.integers(-(2**40), 2**40)))
def test_differences_survive(values: list[int]) -> None:
    assert unfolded(VarintColumn.of_differences(np.array(values, np.int64)).values()).tolist() == values


def test_header_and_columns_survive_at_aligned_places() -> None:
    columns: dict[str, np.ndarray | VarintColumn]
    columns = {"a": np.arange(3, dtype=np.uint8), "b": np.array([1.5, 2.5]), "c": VarintColumn.of(np.array([300, 1]))}
    header, found = decode(encode({"title": "ü <b>"}, columns))
    assert header["title"] == "ü <b>"
    assert all(place["offset"] % 8 == 0 for place in header["columns"].values())
    assert {name: values.tolist() for name, values in found.items()} == {"a": [0, 1, 2], "b": [1.5, 2.5], "c": [300, 1]}


def test_a_header_gains_facts_and_columns_stay_aligned() -> None:
    packed = encode({"key": "x"}, {"a": np.arange(5, dtype=np.uint32), "b": np.arange(3, dtype=np.float64)})
    changed = with_header(packed, {"stretches": [(0, 5, "off")]})
    header, columns = decode(changed)
    assert (header["key"], header["stretches"]) == ("x", [[0, 5, "off"]])
    assert columns["a"].tolist() == [0, 1, 2, 3, 4]
    assert columns["b"].tolist() == [0.0, 1.0, 2.0]
    assert len(changed) % 8 == len(packed) % 8


def test_other_bytes_and_types_are_refused() -> None:
    with pytest.raises(ValueError, match="no timeline"):
        decode(b"PNG\n")
    with pytest.raises(ValueError, match="type"):
        encode({}, {"a": np.array(["x"])})


@pytest.mark.parametrize(("highest", "kind"), [(0, "u1"), (255, "u1"), (256, "u2"), (70_000, "u4")])
def test_smallest_type(highest: int, kind: str) -> None:
    assert smallest_unsigned(np.array([0, highest])).dtype.str[1:] == kind


def unfolded(values: np.ndarray) -> np.ndarray:
    """Numbers that were packed as differences."""
    return np.cumsum(np.where(values % 2 == 1, -(values + 1) // 2, values // 2))


def starts_and_ends(header: dict[str, Any], columns: dict[str, np.ndarray]) -> tuple[list[int], list[int]]:
    """As the browser reads them."""
    starts: list[int] = []
    at = 0
    for side in header["sides"]:
        for lane in side["lanes"]:
            deltas = columns["delta"][at : at + lane["events"]]
            starts += (side["base_ns"] + np.cumsum(deltas)).tolist()
            at += lane["events"]
    return starts, (np.array(starts, np.int64) + columns["length"]).tolist()


def off_and_on(tmp_path: Path) -> list[PassToDraw]:
    capture = makers.dense_off_on(tmp_path / "c", n_pairs=1)
    sides = []
    for arm in ("off", "on"):
        row = capture.passes.query(f"arm == '{arm}' and not warmup").iloc[0]
        line = load_timeline(capture, [int(row["pass_id"])], origin_ns=int(row["t_start"]))
        spans = ubatch_spans(line, capture.table("ubatches", pass_ids=[int(row["pass_id"])]))
        sides.append(PassToDraw(arm, line, spans))
    return sides


def test_packed_events_are_the_timelines_events(tmp_path: Path) -> None:
    sides = off_and_on(tmp_path)
    header, columns = decode(pack(sides, {"key": "k"}))
    starts, ends = starts_and_ends(header, columns)
    assert starts == [*sides[0].line.start, *sides[1].line.start]
    assert ends == [*sides[0].line.end, *sides[1].line.end]
    assert header["key"] == "k"
    assert [side["title"] for side in header["sides"]] == ["off", "on"]
    assert [u[0] for u in header["sides"][0]["ubatches"]] == [0, 1, 2]
    exposed = [lane["exposed"] for side in header["sides"] for lane in side["lanes"]]
    assert sum(exposed) == len(columns["exposed_length"])
    assert columns["exposed_length"][: exposed[0]].sum() == makers.N_COPIES * makers.COPY_US * makers.US


def test_every_event_finds_its_own_labels(tmp_path: Path) -> None:
    header, columns = decode(pack(off_and_on(tmp_path), {}))
    signature = columns["signature"]
    names = [header["texts"][columns["of_name"][s]] for s in signature]
    n_events = [lane["events"] for side in header["sides"] for lane in side["lanes"]]
    assert names == ["ffn"] * n_events[0] + ["layer"] * n_events[1] + ["ffn"] * n_events[2] + ["layer"] * n_events[3]
    assert set(columns["of_bytes"][signature[: n_events[0]]]) == {makers.COPY_BYTES}
    assert columns["of_layer"][signature[: n_events[0]]].tolist() == [0, 1] * 3
    runs = np.searchsorted(columns["run_begin"], np.arange(len(signature)), side="right") - 1
    assert columns["run_ubatch"][runs][: n_events[0]].tolist() == [0, 0, 1, 1, 2, 2]


def test_arrows_lead_from_a_copy_to_the_work_that_waited(tmp_path: Path) -> None:
    header, columns = decode(pack(off_and_on(tmp_path), {}))
    waiting, copies = (unfolded(columns[name]) for name in ("waiting", "waited_copy"))
    starts, ends = starts_and_ends(header, columns)
    assert len(waiting) == 2 * makers.N_COPIES
    assert all(ends[copy] <= starts[waiter] for copy, waiter in zip(copies, waiting, strict=True))


def many(n_events: int) -> Timeline:
    start = np.arange(n_events) * 100
    rows = {"kind": ["compute"] * n_events, "t_start": start, "t_end": start + 50, "device": [0] * n_events}
    return timeline(conform("events", rows), origin_ns=0)


def test_large_sides_are_cut_to_the_wanted_window_with_shares_for_the_rest() -> None:
    line = many(5000)
    data = pack([PassToDraw("one", line, wanted=(400_000, 401_000))], {}, max_events=4000, window_events=500)
    header, columns = decode(data)
    (side,) = header["sides"]
    low, high = side["window"]
    assert low <= 400_000 <= high
    assert side["lanes"][0]["events"] <= 502
    assert side["lanes"][0]["all_events"] == 5000
    assert len(columns["busy_share"]) == 2000
    assert columns["busy_share"].min() > 0.39 * FULL_SHARE


def test_bytes_are_kept_under_the_limit() -> None:
    assert len(pack([PassToDraw("one", many(20_000))], {}, max_bytes=60_000)) <= 60_000


def test_nothing_packs_to_an_empty_drawing() -> None:
    header, columns = decode(pack([PassToDraw("none", timeline(conform("events", {})))], {}))
    assert header["extent"] == [0, 0]
    assert len(columns["delta"]) == 0


def test_long_labels_are_cut() -> None:
    rows = {"kind": ["compute"], "name": ["k" * 5000], "t_start": [0], "t_end": [1]}
    header, _ = decode(pack([PassToDraw("one", timeline(conform("events", rows)))], {}))
    assert [len(text) for text in header["texts"]] == [MAX_LABEL_CHARS]


@pytest.mark.parametrize("asked", [None, "x", 3, {"a": 1}, [], [[1]], [["a", "b"]], [[1, 2**60]], [[1.5, 2.5]], ["12"]])
def test_windows_of_a_hostile_browser_are_ignored(asked: object) -> None:
    assert checked_windows(asked) is None


def test_windows_are_put_in_order() -> None:
    assert checked_windows([[5, 1], [2, 3]]) == [(1, 5), (2, 3)]


def test_marks_are_places_in_their_side(tmp_path: Path) -> None:
    off, on = off_and_on(tmp_path)
    last = len(on.line) - 1
    marked = replace(on, marks=[MarkedPair(0, last, "a race"), MarkedPair(None, 3, "by the thread")])
    header, _ = decode(pack([off, marked], {}))
    assert [side["marks"] for side in header["sides"]] == [[], [[0, last, "a race"], [None, 3, "by the thread"]]]
    header, _ = decode(pack([marked], {}, max_events=10, window_events=10))
    [[first, second, _], _] = header["sides"][0]["marks"]
    assert (first, second) == (0, None), "the window holds the pass's first events alone"


def test_script_is_one_module_that_writes_text_only() -> None:
    text = script()
    assert text.count("export default") == 1
    assert "innerHTML" not in text
    assert "insertAdjacentHTML" not in text
    assert "http" not in text
