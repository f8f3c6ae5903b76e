"""Timelines of hand-made captures: lanes, exposed copies, bins, windows, anchors and waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.metrics.timeline import (
    MAX_STREAMS,
    Timeline,
    exposed_copies,
    lane_figures,
    load_timeline,
    rows_between,
    timeline,
)
from profiler.metrics.timeline_detail import (
    bin_edges,
    bounded_window,
    busy_shares,
    exposed_shares,
    joint_extent,
    layer_starts,
    ubatch_spans,
    waited_for,
)
from profiler.storage.writer import conform
from tests.profiler import makers
from tests.profiler.makers import COMPUTE_US, COPY_US, N_COPIES, US

Row = dict[str, Any]


def line_of(rows: list[Row], **options: Any) -> Timeline:
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(key for row in rows for key in row)}
    return timeline(conform("events", columns), **options)


def row(kind: str, start: int, end: int, **more: Any) -> Row:
    return {"kind": kind, "t_start": start, "t_end": end, "device": 0, "process": 1, "stream": "s", **more}


def test_lanes_of_a_pass_and_what_each_did(tmp_path: Path) -> None:
    capture = makers.dense_off_on(tmp_path / "c", n_pairs=1)
    off = int(capture.passes.query("arm == 'off' and not warmup")["pass_id"].iloc[0])
    figures = lane_figures(load_timeline(capture, [off])).set_index("category")
    assert list(figures.index) == ["h2d", "compute"]
    assert figures.loc["h2d", "busy_ns"] == N_COPIES * COPY_US * US
    assert figures.loc["h2d", "exposed_ns"] == N_COPIES * COPY_US * US
    assert figures.loc["h2d", "bytes"] == N_COPIES * makers.COPY_BYTES
    assert figures.loc["h2d", "gb_s"] == pytest.approx(makers.COPY_BYTES / (COPY_US * US))
    assert figures["exposed_ns"].isna().to_dict()["compute"]


def test_exposed_is_what_compute_of_the_same_device_left() -> None:
    rows = [row("h2d", 0, 100), row("compute", 30, 60), row("compute", 0, 100, device=1)]
    line = line_of(rows, origin_ns=0)
    lane = next(i for i, lane in enumerate(line.lanes) if lane.category == "h2d")
    exposed = exposed_copies(line, lane, line.extent)
    assert exposed is not None
    assert (exposed.starts.tolist(), exposed.ends.tolist()) == ([0, 60], [30, 100])


def test_streams_get_lanes_up_to_a_limit_and_the_least_busy_share_one() -> None:
    rows = [row("compute", 0, 10 * (number + 1), stream=str(number)) for number in range(20)]
    line = line_of(rows, by_stream=True)
    streams = [lane.stream for lane in line.lanes]
    assert len(streams) == MAX_STREAMS
    assert set(streams) - {None} == {str(number) for number in range(13, 20)}
    assert len(line) == 20


def test_impossible_rows_are_left_out_and_host_lanes_come_last() -> None:
    rows = [row("api", 0, 5, device=None), row("h2d", 10, 5), row("compute", 3, 9), row("compute", None, 4)]  # type: ignore[arg-type]
    line = line_of(rows, origin_ns=1)
    assert [lane.category for lane in line.lanes] == ["compute", "api"]
    assert line.extent == (-1, 8)


def test_empty_table_gives_an_empty_line() -> None:
    line = timeline(conform("events", {}))
    assert (len(line), line.lanes, line.extent) == (0, (), (0, 0))
    assert joint_extent([line]) == (0, 0)
    assert busy_shares(line, bin_edges((0, 0), 4)).shape == (0, 4)


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12), st.sampled_from(["h2d", "compute"])), min_size=1)


@settings(max_examples=60)
@given(spans)
def test_busy_and_exposed_shares_against_a_grid(found: list[tuple[int, int, str]]) -> None:
    line = line_of([row(kind, start, start + length) for start, length, kind in found], origin_ns=0)
    edges = np.arange(0, 80, 5)
    busy = {kind: {t for s, n, k in found if k == kind for t in range(s, s + n)} for kind in ("h2d", "compute")}
    shares, exposed = busy_shares(line, edges), exposed_shares(line, edges)
    for number, lane in enumerate(line.lanes):
        alone = busy["h2d"] - busy["compute"] if lane.category == "h2d" else set()
        for i, low in enumerate(edges[:-1]):
            cell = set(range(low, low + 5))
            assert shares[number, i] == pytest.approx(len(busy[lane.category] & cell) / 5)
            assert exposed[number, i] == pytest.approx(len(alone & cell) / 5)


@settings(max_examples=60)
@given(spans, st.integers(0, 70), st.integers(1, 20))
def test_rows_between_holds_every_row_that_touches_the_window(
    found: list[tuple[int, int, str]], low: int, length: int
) -> None:
    line = line_of([row("h2d", start, start + n) for start, n, _ in found], origin_ns=0)
    rows = rows_between(line, 0, (low, low + length))
    touching = np.flatnonzero((line.start < low + length) & (line.end > low))
    assert set(touching.tolist()) <= set(range(rows.start, rows.stop))
    assert (line.start[rows] < low + length).all()


def test_bounded_window_holds_no_more_than_its_limit_and_what_was_wanted() -> None:
    line = line_of([row("compute", 10 * i, 10 * i + 5) for i in range(1000)], origin_ns=0)
    assert bounded_window(line, 1000) == line.extent
    for wanted, middle in (((0, 10), 0), ((4990, 5010), 5000), ((9990, 9999), 9994)):
        low, high = bounded_window(line, 100, wanted)
        inside = (line.start >= low) & (line.start < high)
        assert 90 <= inside.sum() <= 100
        assert low <= middle <= high


def test_ubatches_and_layers_start_where_the_pass_says(tmp_path: Path) -> None:
    capture = makers.dense_off_on(tmp_path / "c", n_pairs=1)
    passes = capture.passes.query("arm == 'off' and not warmup")
    pass_id, origin = int(passes["pass_id"].iloc[0]), int(passes["t_start"].iloc[0])
    line = load_timeline(capture, [pass_id], origin_ns=origin)
    spans = ubatch_spans(line, capture.table("ubatches", pass_ids=[pass_id]))
    a_ubatch = 2 * (COPY_US + COMPUTE_US) * US
    assert [(u.number, u.phase, u.start_ns) for u in spans] == [
        (0, "prefill", 0),
        (1, "prefill", a_ubatch),
        (2, "decode", 2 * a_ubatch),
    ]
    starts = layer_starts(line)
    assert starts.ubatch.tolist() == [0, 0, 1, 1, 2, 2]
    assert starts.layer.tolist() == [0, 1] * 3
    assert starts.start_ns.tolist() == [(COPY_US + i * (COPY_US + COMPUTE_US)) * US for i in range(6)]
    without = ubatch_spans(line, capture.table("ubatches", pass_ids=[]))
    assert [u.number for u in without] == [0, 1, 2]


def test_waits_pair_work_with_the_copy_that_it_names() -> None:
    rows = [
        row("h2d", 0, 1, correlation_id=7),
        row("compute", 1, 2, waits_for=7),
        row("compute", 2, 3, waits_for=99),
        row("wait", 2, 3, waits_for=7),
        row("compute", 5, 6, correlation_id=99),
    ]
    copy, waiter = waited_for(line_of(rows).table())
    assert (copy.tolist(), waiter.tolist()) == ([0, 0], [1, 4])  # the lane of waits is the last
