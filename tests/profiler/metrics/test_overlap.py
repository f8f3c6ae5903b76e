"""Busy, hidden, exposed and idle of random traces, against cells of a microsecond grid counted one by one."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.arithmetic import intervals
from profiler.metrics import OverlapByPass, device_figures, overlap
from profiler.metrics.overlap import DeviceTime, PassWindows
from profiler.schema import CPU_COMPUTE, WAIT
from profiler.storage.writer import conform

US = 1000
KINDS = ("h2d", "h2d", "compute", "compute", "d2h", "cpu_compute", "wait", "api")
Row = dict[str, Any]
NO_WINDOWS = PassWindows(*np.empty((3, 0), np.int64))
DEVICE_WORK = (
    *(("compute", detail) for detail in (None, "collective", "memset", "graph")),
    *((kind, detail) for kind in ("h2d", "d2h") for detail in (None, "uvm")),
)
rows_of = st.lists(
    st.fixed_dictionaries(
        {
            "pass_id": st.sampled_from([None, 0, 0, 1]),
            "phase": st.sampled_from(["prefill", "decode"]),
            "ubatch": st.integers(0, 1),
            "layer": st.sampled_from([None, 0, 1]),
            "process": st.sampled_from([7, 7, 7, None]),
            "device": st.sampled_from([0, 0, 0, 1]),
            "kind": st.sampled_from(KINDS),
            "t_start": st.integers(0, 24),
            "length": st.integers(0, 10),
            "bytes": st.sampled_from([None, 1, 10]),
            "detail": st.sampled_from([None] * 8 + ["uvm", "memset", "collective", "graph", "kernel"]),
        }
    ),
    min_size=3,
    max_size=25,
)


def recording_of(
    rows: list[Row], n_tables: int = 1, *, by_layer: bool = True, one_clock: PassWindows | None = None
) -> OverlapByPass:
    """Rows in `n_tables` tables, each pass in one of them."""
    tables = []
    for table in range(n_tables):
        mine = [row for row in rows if (row["pass_id"] or 0) % n_tables == table]
        columns: dict[str, Any] = {name: [row[name] for row in mine] for name in (mine[0] if mine else {})}
        if not columns:
            continue
        length = columns.pop("length")
        columns["t_end"] = [(start + more) * US for start, more in zip(columns["t_start"], length, strict=True)]
        columns["t_start"] = [start * US for start in columns["t_start"]]
        tables.append(conform("events", columns))
    return OverlapByPass(tables, by_layer=by_layer, one_clock=one_clock)


def cells(rows: list[Row], kind: str, detail: str | None = None) -> dict[tuple[Any, ...], set[int]]:
    """Busy grid cells by (pass, process, device) of the rows of a kind that count as it; of copies, plain or `uvm`."""
    found: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for row in rows:
        counts = row["detail"] == detail or (row["detail"] == "uvm" and not detail and kind not in ("h2d", "d2h"))
        if row["kind"] == kind and counts:
            context = (row["pass_id"], row["process"], row["device"])
            found[context] |= set(range(row["t_start"], row["t_start"] + row["length"]))
    return found


def groups(rows: list[Row], names: tuple[str, ...]) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(row)
    return found


@settings(max_examples=60, deadline=None)
@given(rows_of, st.sampled_from([("pass_id",), ("pass_id", "phase"), ("pass_id", "phase", "ubatch", "layer")]))
def test_any_grouping_matches_the_grid(rows: list[Row], names: tuple[str, ...]) -> None:
    overlap = recording_of(rows).overlap(names)
    keys = zip(*([None if k == -1 else k for k in overlap.keys[name].tolist()] for name in names), strict=True)
    found = {key: group for group, key in enumerate(keys)}
    phases = {"prefill": 0, "decode": 1}
    compute = cells(rows, "compute")
    for key, mine in groups(rows, names).items():
        copies, computes = cells(mine, "h2d"), cells(mine, "compute")
        if not copies and not computes:
            continue
        group = found[tuple(phases.get(part, part) for part in key)]
        hidden_on = {context: len(busy & compute[context]) for context, busy in copies.items()}
        hidden = sum(hidden_on.values())
        hideable = sum(min(len(copies[c]), max(len(computes[c]), hidden_on.get(c, 0))) for c in {*copies, *computes})
        assert overlap.busy_copy_ns[group] == sum(map(len, copies.values())) * US
        assert overlap.busy_compute_ns[group] == sum(map(len, computes.values())) * US
        assert overlap.hidden_copy_ns[group] == hidden * US
        assert overlap.exposed_copy_ns[group] + overlap.hidden_copy_ns[group] == overlap.busy_copy_ns[group]
        assert overlap.hideable_ns[group] == hideable * US
        if hideable and any(computes.values()):
            assert np.isclose(overlap.overlap_efficiency[group], hidden / hideable)
            assert overlap.overlap_efficiency[group] <= 1
        else:
            assert np.isnan(overlap.overlap_efficiency[group])


@settings(max_examples=60, deadline=None)
@given(rows_of)
def test_pieces_change_nothing(rows: list[Row]) -> None:
    whole, pieces = recording_of(rows), recording_of(rows, n_tables=2)
    names = ("pass_id", "phase", "layer")
    for one, many in ((whole.overlap(names), pieces.overlap(names)), (whole.transfers(names), pieces.transfers(names))):
        assert rows_by_key(one, names) == rows_by_key(many, names)
    assert device_figures(whole) == device_figures(pieces)


@settings(max_examples=60, deadline=None)
@given(rows_of, st.integers(1, 5), st.sampled_from([0, 16]))
def test_without_layers_and_in_slices_nothing_changes(rows: list[Row], slice_rows: int, few_groups: int) -> None:
    fine = recording_of(rows)
    with mock.patch.object(overlap, "_SLICE_ROWS", slice_rows), mock.patch.object(intervals, "_FEW_GROUPS", few_groups):
        coarse = recording_of(rows, by_layer=False)
        for names in (("pass_id",), ("pass_id", "phase"), ("pass_id", "device")):
            assert rows_by_key(coarse.overlap(names), names) == rows_by_key(fine.overlap(names), names)
            assert rows_by_key(coarse.transfers(names), names) == rows_by_key(fine.transfers(names), names)
            for role in (WAIT, CPU_COMPUTE):
                told = [one.busy(names, role) for one in (coarse, fine)]
                first, second = ([keys["pass_id"].tolist(), busy_ns.tolist()] for keys, busy_ns in told)
                assert first == second
        assert device_figures(coarse) == device_figures(fine)


def rows_by_key(figures: Any, names: tuple[str, ...]) -> set[tuple[Any, ...]]:
    columns = [figures.keys[name].tolist() for name in names]
    fields = [name for name in type(figures).__dataclass_fields__ if name != "keys"]
    values = [np.nan_to_num(getattr(figures, name), nan=-1.0).tolist() for name in fields]
    return set(zip(*columns, *values, strict=True))


@settings(max_examples=60, deadline=None)
@given(rows_of, st.integers(-2, 30), st.integers(0, 20))
def test_idle_is_what_no_device_row_covers(rows: list[Row], start: int, length: int) -> None:
    windows = (np.array([0]), np.array([start * US]), np.array([(start + length) * US]))
    (found,) = recording_of(rows).idle(*windows)
    busy: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for kind, detail in DEVICE_WORK:
        for context, some in cells([row for row in rows if row["length"]], kind, detail).items():
            busy[context] |= some
    devices = [some for (pass_id, _, _), some in busy.items() if pass_id == 0]
    window = set(range(start, start + length))
    assert np.isnan(found) if not devices else found == sum(len(window - some) for some in devices) * US


@settings(max_examples=60, deadline=None)
@given(rows_of)
def test_waits_and_host_compute_are_unions(rows: list[Row]) -> None:
    recording = recording_of(rows)
    for kind, role in (("wait", WAIT), ("cpu_compute", CPU_COMPUTE)):
        keys, busy_ns = recording.busy(("pass_id",), role)
        found = dict(zip(keys["pass_id"].tolist(), busy_ns.tolist(), strict=True))
        for (pass_id,), mine in groups(rows, ("pass_id",)).items():
            some = [row for row in mine if row["kind"] == kind and row["detail"] in (None, "uvm")]
            covered = {c for row in some for c in range(row["t_start"], row["t_start"] + row["length"])}
            assert found.get(-1 if pass_id is None else pass_id, 0) == len(covered) * US


@settings(max_examples=60, deadline=None)
@given(rows_of)
def test_devices_match_the_grid_across_passes(rows: list[Row]) -> None:
    found = {(f.process, f.device): f for f in device_figures(recording_of(rows, one_clock=NO_WINDOWS))}
    flat = [row | {"pass_id": None} for row in rows]
    compute = cells(flat, "compute")
    for name, kind, detail in (("h2d", "h2d", None), ("d2h", "d2h", None), ("uvm_h2d", "h2d", "uvm")):
        for (_, process, device), busy in cells(flat, kind, detail).items():
            copies = found[process, device].copies[name]
            assert copies.busy_ns == len(busy) * US
            hidden_ns = len(busy & compute[None, process, device]) * US
            assert copies.hidden_ns == (None if detail == "uvm" else hidden_ns)
            mine = [
                row
                for row in rows
                if (row["kind"], row["detail"], row["process"], row["device"]) == (kind, detail, process, device)
            ]
            assert copies.count == len(mine)
            sizes = [row["bytes"] for row in mine]
            assert copies.bytes == (None if None in sizes else sum(sizes))


@settings(max_examples=100, deadline=None)
@given(rows_of, st.integers(0, 20), st.integers(1, 12), st.integers(0, 12), st.booleans())
def test_on_one_clock_a_pass_is_what_its_devices_did_in_its_window(
    rows: list[Row], start: int, length: int, later: int, as_pieces: bool
) -> None:
    """Whichever pass issued it; and no efficiency exceeds 1."""
    edges = [(start, start + length), (start + length, start + length + later)]
    windows = PassWindows(np.arange(2), *np.array(edges, np.int64).T * US)
    recording = recording_of(rows, 2 if as_pieces else 1, one_clock=windows)
    overlap = recording.overlap(("pass_id",))
    idle_ns = recording.idle(*windows)
    flat = [row | {"pass_id": None} for row in rows]
    compute, copies, collective = (cells(flat, *what) for what in (("compute",), ("h2d",), ("compute", "collective")))
    work = [cells([row for row in flat if row["length"]], *what) for what in DEVICE_WORK]
    for number, (first, end) in enumerate(edges):
        window = set(range(first, end))
        devices = {(None, r["process"], r["device"]) for r in rows if r["pass_id"] == number and is_work(r)}
        if not devices:
            devices = {device for one in work for device, busy in one.items() if busy & window}
        if not devices:
            assert np.isnan(idle_ns[number])
            continue
        (group,) = np.flatnonzero(overlap.keys["pass_id"] == number)
        busy_copy = {device: copies[device] & window for device in devices}
        hidden = sum(len(busy & compute[device]) for device, busy in busy_copy.items())
        assert overlap.busy_copy_ns[group] == sum(map(len, busy_copy.values())) * US
        assert overlap.busy_compute_ns[group] == sum(len(compute[device] & window) for device in devices) * US
        assert overlap.hidden_copy_ns[group] == hidden * US
        assert overlap.collective_ns[group] == sum(len(collective[device] & window) for device in devices) * US
        worked: list[set[int]] = [set().union(*(one[device] for one in work)) for device in devices]
        assert idle_ns[number] == sum(len(window - one) for one in worked) * US
        assert np.nan_to_num(overlap.overlap_efficiency[group]) <= 1


def is_work(row: Row) -> bool:
    detail = None if row["kind"] == "compute" and row["detail"] == "uvm" else row["detail"]
    return row["length"] > 0 and (row["kind"], detail) in DEVICE_WORK


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), max_size=6),
    st.lists(st.tuples(st.integers(-5, 35), st.integers(0, 12)), max_size=4),
)
def test_gaps_are_the_stretches_that_idle_adds_up(busy: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    starts, lengths = np.array(busy, np.int64).reshape(-1, 2).T
    first, width = np.array(windows, np.int64).reshape(-1, 2).T
    nothing = intervals.union(*np.empty((2, 0), np.int64))
    time = DeviceTime(nothing, intervals.union(starts, starts + lengths))
    window, begins, gaps = time.gaps(first, first + width)
    working = {cell for start, length in busy for cell in range(start, start + length)}
    for number, (start, length) in enumerate(windows):
        free = "".join("." if cell not in working else "#" for cell in range(start, start + length))
        expected = [len(gap) for gap in free.split("#") if gap]
        assert gaps[window == number].tolist() == expected
        opening = [at for at, cell in enumerate(free) if cell == "." and free[at - 1 : at] != "."]
        assert (begins[window == number] - start).tolist() == opening
        assert time.idle_ns(first, first + width)[number] == sum(expected)
