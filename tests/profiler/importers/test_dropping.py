"""Rows that cannot be go, by the same rules whatever recorded them; rows that only look odd stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hprof.opened import OpenedCapture
from profiler.importers import import_files, read_file
from profiler.importers.base import Imported
from profiler.importers.dropping import (
    FAR_FROM_LAUNCH,
    MAX_OVERLAP_NS,
    OVERRUNS,
    far_from_launch,
    far_times,
    impossible_times,
    kept_rows,
    overrunning,
    scaled_ns,
    time_limits,
)
from profiler.report.build import build_report
from tests.profiler.importers.kineto import traces
from tests.profiler.importers.nsys import exports
from tests.profiler.importers.nsys.exports import GRAPH, KERNEL, MEMCPY, RUNTIME
from tests.support import shared_path

_US, _MS, _S, _DAY = 10**3, 10**6, 10**9, 86_400 * 10**9


def _of_one_stream(spans: Sequence[tuple[int, int]], calls: Sequence[int] | None = None) -> tuple[list[int], int]:
    """The marked rows of one stream, and how many overlap and stay."""
    start, end = np.array(spans, np.int64).reshape(-1, 2).T
    call = np.full(len(spans), -1) if calls is None else np.array(calls)
    marked, n_overlapping = overrunning(np.zeros(len(spans), np.int64), start, end, call)
    return np.flatnonzero(marked).tolist(), n_overlapping


_STEADY = [(i * _MS, i * _MS + 400 * _US) for i in range(40)]


def _with(changes: dict[int, tuple[int, int]]) -> list[tuple[int, int]]:
    return [changes.get(number, span) for number, span in enumerate(_STEADY)]


@pytest.mark.parametrize(
    ("changes", "marked"),
    [
        ({}, []),
        ({3: (3 * _MS, 13 * _MS)}, [3]),
        ({3: (3 * _MS, 5_000 * _MS)}, [3]),
        ({3: (3 * _MS, 13 * _MS), 5: (5 * _MS, 25 * _MS)}, [3, 5]),
        ({3: (3 * _MS, 8 * _MS), 5: (5 * _MS, 25 * _MS)}, [3, 5]),
        ({3: (3 * _MS, 4 * _MS + 3 * _US)}, []),  # the clock's jitter
        ({3: (3 * _MS, 4 * _MS + 40 * _US)}, []),  # a dependent launch
        ({3: (3 * _MS, 4 * _MS + 300 * _US)}, [3]),
        ({4: (3 * _MS, 4 * _MS)}, []),  # two begin at one time
        ({4: (3 * _MS, 3 * _MS)}, []),
        ({9: (2 * _MS + 200 * _US, 9 * _MS)}, [9]),  # it began too early: those that it runs into stay
        ({39: (39 * _MS, 900 * _MS)}, []),  # nothing after it says that it is wrong
    ],
)
def test_work_of_one_stream_is_serial(changes: dict[int, tuple[int, int]], marked: list[int]) -> None:
    assert _of_one_stream(_with(changes)) == (marked, 0)


def test_a_stream_on_which_much_overlaps_is_not_serial() -> None:
    side_by_side = [(i * _MS, i * _MS + 5 * _MS) for i in range(40)]
    assert _of_one_stream(side_by_side) == ([], 39)


@pytest.mark.parametrize(
    ("changes", "marked"),
    [
        ({3: (3 * _MS, 9 * _MS), 8: (8 * _MS, 11 * _MS)}, [3, 8]),
        ({3: (3 * _MS, 9 * _MS), 8: (8 * _MS, 14 * _MS)}, [3, 8]),
        ({1: (1 * _MS, 3 * _MS), 5: (5 * _MS, 500 * _MS), 8: (8 * _MS, 11 * _MS)}, [1, 5, 8]),
    ],
)
def test_wrong_ends_on_a_short_stream_stand_out(changes: dict[int, tuple[int, int]], marked: list[int]) -> None:
    assert _of_one_stream(_with(changes)[:12]) == (marked, 0)


@pytest.mark.parametrize(
    ("spans", "n_overlapping"),
    [
        # kernels of one length, two at a time
        ([(i * _MS, (2 * i + 3) * _MS // 2) for i in range(12)], 11),
        # a long kernel beside three short ones, again and again
        ([(i * _MS, (i + 4) * _MS if i % 4 == 0 else i * _MS + 400 * _US) for i in range(12)], 3),
        # a long kernel in every second row
        ([(i * _MS, i * _MS + (1500 + 400 * i if i % 2 == 0 else 400) * _US) for i in range(12)], 6),
        # overlaps no longer than the rest
        ([(i * _MS, i * _MS + (1300 if i % 4 == 1 else 950) * _US) for i in range(12)], 3),
    ],
)
def test_short_streams_on_which_much_overlaps_stay(spans: list[tuple[int, int]], n_overlapping: int) -> None:
    assert _of_one_stream(spans) == ([], n_overlapping)


def test_a_short_trace_with_two_wrong_ends_has_the_figures_of_the_rest(tmp_path: Path) -> None:
    events = []
    for i in range(12):
        t = 1000 * (i + 1)
        events += [traces.call(t - 500, 5, 2 * i + 1), traces.call(t - 400, 5, 2 * i + 2)]
        events.append(traces.h2d(t, 500, 5_000_000, correlation=2 * i + 1))
        length_us = {3: 6000, 8: 3000}.get(i, 450)
        events.append(traces.kernel(t + 500, length_us, correlation=2 * i + 2))
    import_files([traces.write(tmp_path / "t.json", events)], tmp_path / "c")
    capture = OpenedCapture.open(tmp_path / "c")
    assert dict(capture.manifest.dropped) == {f"device row: {OVERRUNS}": 2}
    (device,) = build_report(capture).devices
    assert (device.copies["h2d"].count, device.copies["h2d"].hidden_ratio) == (12, 0)


def test_kernels_of_one_graph_may_run_side_by_side() -> None:
    spans = _with({3: (3 * _MS, 13 * _MS)})
    assert _of_one_stream(spans, [7 if 3 <= i < 13 else 100 + i for i in range(40)]) == ([], 0)
    assert _of_one_stream(spans, [100 + i for i in range(40)]) == ([3], 0)


def test_streams_do_not_judge_each_other() -> None:
    start, end = np.array(_with({3: (3 * _MS, 13 * _MS)}), np.int64).T
    alone = np.array([1 if number == 3 else 0 for number in range(40)])
    assert not overrunning(alone, start, end, np.full(40, -1))[0].any()
    nowhere = np.array([-1 if number == 3 else 0 for number in range(40)])
    assert not overrunning(nowhere, start, end, np.full(40, -1))[0].any()
    many = np.arange(40) % 20
    assert overrunning(many, start, np.where(np.arange(40) == 3, 30 * _MS, end), np.full(40, -1))[0].nonzero()[0] == [3]


@given(
    gaps=st.lists(st.integers(0, 5_000), min_size=2, max_size=60),
    jitter=st.lists(st.integers(-MAX_OVERLAP_NS // 2, MAX_OVERLAP_NS // 2), min_size=60, max_size=60),
)
def test_jitter_alone_marks_nothing(gaps: list[int], jitter: list[int]) -> None:
    edges = np.cumsum(np.repeat(gaps, 2) * _US)
    start, end = edges[::2], edges[1::2] + np.array(jitter[: len(gaps)])
    end = np.maximum(start, end)
    assert _of_one_stream(list(zip(start.tolist(), end.tolist(), strict=True))) == ([], 0)


def test_a_clock_that_is_off_for_some_rows_and_one_that_is_off_for_all() -> None:
    calls = np.arange(100) * _MS
    lag = np.where(np.arange(100) < 5, -5 * _DAY, 20 * _US)
    assert far_from_launch(calls + lag, calls).nonzero()[0].tolist() == [0, 1, 2, 3, 4]
    assert not far_from_launch(calls + 40 * _DAY, calls).any()
    assert not far_from_launch(calls + np.arange(100) * 30 * _S, calls).any()  # a queue that grows
    assert len(far_from_launch(calls[:0], calls[:0])) == 0


def test_reasons_are_counted_once_and_in_their_order() -> None:
    start, end = np.array([5, 5, 0, 9]), np.array([9, 5 + 2 * _DAY, 0, 3])
    dropped: Counter[str] = Counter()
    kept = kept_rows("kernel", impossible_times(start, end, np.array([False, False, True, False])), dropped)
    assert kept.tolist() == [True, False, False, False]
    assert dropped == {"kernel: no times": 1, "kernel: end before start": 1, "kernel: longer than a day": 1}


def test_extreme_times_overflow_nothing() -> None:
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    start, end = np.array([least, 0, most]), np.array([most, 1, most])
    assert impossible_times(start, end, np.zeros(3, np.bool_))["longer than a day"].tolist() == [True, False, False]
    (far,) = far_times(start, time_limits(start)).values()
    assert far.tolist() == [True, False, True]


def _damaged_kineto(path: Path) -> Imported:
    events = []
    for i in range(100):
        t = 1000 + 500 * i
        events += [traces.call(t - 20, 3, 2 * i + 1), traces.call(t - 15, 3, 2 * i + 2)]
        events.append(traces.h2d(t, 3_200_000 if i == 20 else 50, correlation=2 * i + 1))
        events.append(traces.kernel(t + 60, 2_500_000 if i == 50 else 400, correlation=2 * i + 2))
    return traces.imported(path, events)


def _damaged_nsys(path: Path) -> Imported:
    kernels, copies, calls = [], [], []
    for i in range(100):
        t = (1000 + 500 * i) * _US
        calls += [exports.call(t - 20 * _US, t - 17 * _US, 2 * i + 1), exports.call(t - 15 * _US, t, 2 * i + 2)]
        copies.append(exports.copy(t, t + (3_200_000 if i == 20 else 50) * _US, 2 * i + 1, streamId=14))
        kernels.append(exports.kernel(t + 60 * _US, t + 60 * _US + (2_500_000 if i == 50 else 400) * _US, 2 * i + 2))
    return exports.imported(path, {KERNEL: kernels, MEMCPY: copies, RUNTIME: calls})


def _damaged_stats(path: Path) -> Imported:
    lines = ["Start (ns),Duration (ns),CorrId,Bytes (MB),SrcMemKd,Device,Ctx,Strm,Name"]
    for i in range(100):
        t = (1000 + 500 * i) * _US
        copied, computed = (3_200_000 if i == 20 else 50) * _US, (2_500_000 if i == 50 else 400) * _US
        lines.append(f"{t},{copied},{2 * i + 1},1.000,Pinned,GPU (0),1,14,[CUDA memcpy Host-to-Device]")
        lines.append(f"{t + 60 * _US},{computed},{2 * i + 2},,,GPU (0),1,7,gemm")
    (path / "trace.csv").write_text("\n".join(lines) + "\n")
    return read_file(path / "trace.csv")


@pytest.mark.parametrize("read", [_damaged_kineto, _damaged_nsys, _damaged_stats])
def test_two_rows_of_many_that_overran_their_streams(tmp_path: Path, read: Callable[[Path], Imported]) -> None:
    found = read(tmp_path)
    assert dict(found.dropped) == {f"device row: {OVERRUNS}": 2}
    assert not any("the work of" in text for text in found.cannot_say)  # what was left out was not lost
    events = found.tables["events"].to_pylist()
    for kind, length_us in (("h2d", 50), ("compute", 400)):
        mine = [row for row in events if row["kind"] == kind]
        assert len(mine) == 99
        assert {row["t_end"] - row["t_start"] for row in mine} == {length_us * _US}


def test_device_rows_with_a_clamped_clock(tmp_path: Path) -> None:
    base = 5 * 86_400_000_000  # us: Kineto writes 0 for times before the base of its clock
    events = [traces.call(base + 500 * i, 3, i + 1) for i in range(60)]
    events += [traces.kernel(base + 500 * i + 10, 400, correlation=i + 1) for i in range(55)]
    events += [traces.kernel(0, 0, correlation=i + 1) for i in range(55, 60)]
    found = traces.imported(tmp_path, events)
    assert dict(found.dropped) == {f"device row: {FAR_FROM_LAUNCH}": 5}
    assert min(row["t_start"] for row in traces.rows(found)) == base * 1000


def test_an_nsys_row_days_from_its_launch_moves_no_other(tmp_path: Path) -> None:
    kernels = [exports.kernel(5 * _DAY + i * _MS, 5 * _DAY + i * _MS + 100, i + 1) for i in range(20)]
    calls = [exports.call(5 * _DAY + i * _MS - 50, 5 * _DAY + i * _MS, i + 1) for i in range(21)]
    found = exports.imported(tmp_path, {KERNEL: [*kernels, exports.kernel(1, 2, 21)], RUNTIME: calls})
    assert dict(found.dropped) == {f"device row: {FAR_FROM_LAUNCH}": 1}
    assert found.manifest_fields["extra"]["origin_ns"] == 5 * _DAY - 50


def test_streams_that_are_not_serial_are_told_and_stay(tmp_path: Path) -> None:
    events = [traces.kernel(1000 * i, 5000, correlation=i + 1) for i in range(30)]
    found = traces.imported(tmp_path, events)
    assert (dict(found.dropped), found.tables["events"].num_rows) == ({}, 30)
    assert any(text.startswith("Device rows overlap 29 times on streams") for text in found.warnings)


def test_graphs_recorded_as_a_whole_and_migrations_are_in_no_streams_order(tmp_path: Path) -> None:
    tables = {
        GRAPH: [exports.device_row(0 + 1, 50 * _MS, 1, graphId=1)],
        KERNEL: [exports.kernel(i * _MS + 5, i * _MS + 500, 10 + i) for i in range(40)],
        MEMCPY: [exports.copy(2, 30 * _MS, copyKind=11)],
    }
    found = exports.imported(tmp_path, tables)
    assert (dict(found.dropped), found.tables["events"].num_rows) == ({}, 42)


@pytest.mark.parametrize("folder", ["nsys", "kineto"])
def test_nothing_of_real_traces_is_damaged(folder: str) -> None:
    for path in shared_path("data", folder).iterdir():
        if path.suffix in (".sqlite", ".gz"):
            found = read_file(path)
            assert not [reason for reason in found.dropped if reason.startswith("device row")]
            assert not [text for text in found.warnings if "overlap" in text]


def test_times_in_other_units_fit_or_are_marked_and_never_wrap() -> None:
    largest = 2**62 // 1000
    values = np.array([0, -3, 7, largest - 1, largest, 2**63 - 1, -(2**63)], np.int64)
    ns, fits = scaled_ns(values, 1000)
    assert fits.tolist() == [True, True, True, True, False, False, False]
    assert ns.tolist() == [0, -3000, 7000, (largest - 1) * 1000, 0, 0, 0]
